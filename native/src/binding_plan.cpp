// Plans: one call on the same arrays every time.
#include "binding_callable.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace collectives {

namespace {

struct Plan {
    Caller caller;
    std::shared_ptr<const Operation> operation;
    nb::object x;
    nb::object out;
    nb::object refuse;  // raises what is wrong
    bool copied = false;

    PyObject* call() {
        if (!caller.latch->acquire()) return PyObject_Vectorcall(refuse.ptr(), nullptr, 0, nullptr);
        return caller.run(operation, data_of(x.ptr()), data_of(out.ptr()), copied, out.ptr());
    }

    int visit(visitproc visit, void* arg) const {
        Py_VISIT(x.ptr());
        Py_VISIT(out.ptr());
        Py_VISIT(refuse.ptr());
        return 0;
    }
};

PyObject* enter(PyObject* self, PyObject* const*, std::size_t nargs, PyObject* names) {
    if (is_cleared<Plan>(self)) return nullptr;
    if (PyVectorcall_NARGS(nargs) != 0 || (names != nullptr && PyTuple_GET_SIZE(names) != 0)) {
        PyErr_SetString(PyExc_TypeError, "a plan takes no arguments: it was made for its arrays");
        return nullptr;
    }
    return value_of<Plan>(self).call();
}

PyObject* out_of(PyObject* self, void*) {
    if (is_cleared<Plan>(self)) return nullptr;
    return nb::object(value_of<Plan>(self).out).release().ptr();
}

PyGetSetDef attributes[] = {
    {"out", out_of, nullptr, "The array that each call writes to and returns.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

}  // namespace

void add_plans(nb::module_& module) {
    static PyTypeObject* const type = make_type<Plan>(
        "collectives.Plan", "An allreduce of the same arrays, run by calling it. Returns `out`.", attributes);
    module.attr("Plan") = nb::handle(reinterpret_cast<PyObject*>(type));
    module.def(
        "plan",
        [](nb::handle group, nb::object latch, double timeout, const PyOperation& operation, nb::object x,
           nb::object out, bool copied, nb::object refuse) {
            auto plan = std::make_unique<Plan>();
            plan->caller = Caller::to(group, std::move(latch), timeout);
            plan->operation = operation.operation;
            for (const nb::object& array : {x, out}) {
                if (as_array(array.ptr()) == nullptr) throw nb::type_error("a plan needs NumPy arrays");
            }
            plan->x = std::move(x);
            plan->out = std::move(out);
            plan->copied = copied;
            plan->refuse = std::move(refuse);
            return make_callable(type, enter, std::move(plan));
        },
        "group"_a, "latch"_a, "timeout"_a, "operation"_a, "x"_a, "out"_a, "copied"_a, "refuse"_a);
}

}  // namespace collectives
