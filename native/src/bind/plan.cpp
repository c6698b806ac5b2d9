// Plans: calls that use the same arrays every time.
#include "bind/callable.hpp"
#include "bind/owners.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace collectives {

namespace {

struct Plan {
    Caller caller;
    std::shared_ptr<const Operation> operation;
    nb::object in;  // `in` and `out` are None if there is no input or no output
    nb::object out;
    nb::object result;  // what a call returns
    nb::object refuse;  // raises the error if the latch cannot be taken
    nb::object start;   // starts the same call in the background
    nb::object owner;   // the communicator, which lives as long as its plans
    bool copied = false;

    PyObject* call() {
        if (!caller.latch->acquire()) return PyObject_Vectorcall(refuse.ptr(), nullptr, 0, nullptr);
        announce(*caller.group, in);
        announce(*caller.group, out);
        return caller.run(operation, memory_of(in), memory_of(out), copied, result.ptr());
    }

    static std::byte* memory_of(const nb::object& array) {
        return array.is_none() ? nullptr : data_of(array.ptr());
    }

    int visit(visitproc visit, void* arg) const {
        Py_VISIT(in.ptr());
        Py_VISIT(out.ptr());
        Py_VISIT(result.ptr());
        Py_VISIT(refuse.ptr());
        Py_VISIT(start.ptr());
        Py_VISIT(owner.ptr());
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
    return nb::object(value_of<Plan>(self).result).release().ptr();
}

PyObject* start_of(PyObject* self, void*) {
    if (is_cleared<Plan>(self)) return nullptr;
    return nb::object(value_of<Plan>(self).start).release().ptr();
}

PyGetSetDef attributes[] = {
    {"out", out_of, nullptr, "What each call returns: the array that it writes to, or None.", nullptr},
    {"start", start_of, nullptr, "Call it in the background: gives a Work.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

}  // namespace

void add_plans(nb::module_& module) {
    static PyTypeObject* const type = make_type<Plan>(
        "collectives.Plan", "An operation on the same arrays, run by calling it. Returns `out`.", attributes);
    module.attr("Plan") = nb::handle(reinterpret_cast<PyObject*>(type));
    module.def(
        "plan",
        [](nb::handle group, nb::object latch, double timeout, const PyOperation& operation, nb::object in,
           nb::object out, nb::object result, bool copied, nb::object refuse, nb::object start,
           nb::object owner) {
            auto plan = std::make_unique<Plan>();
            plan->caller = Caller::to(group, std::move(latch), timeout);
            plan->operation = operation.operation;
            for (const nb::object& array : {in, out}) {
                if (!array.is_none() && as_array(array.ptr()) == nullptr) {
                    throw nb::type_error("a plan needs NumPy arrays");
                }
            }
            plan->in = std::move(in);
            plan->out = std::move(out);
            plan->result = std::move(result);
            plan->copied = copied;
            plan->refuse = std::move(refuse);
            plan->start = std::move(start);
            plan->owner = std::move(owner);
            return make_callable(type, enter, std::move(plan));
        },
        "group"_a, "latch"_a, "timeout"_a, "operation"_a, "inp"_a.none(), "out"_a.none(), "result"_a.none(),
        "copied"_a, "refuse"_a, "start"_a, "owner"_a);
}

}  // namespace collectives
