// Calls that are made again and again: from Python's call to the engine with nothing in between.
//
// Invariant: whatever is not exactly as it was when the long way, in Python, accepted it goes the long way
// again. Everything here runs with the GIL; it is released around the operation alone.
#include <nanobind/nanobind.h>
#include <structmember.h>

#include <cstring>
#include <unordered_map>
#include <vector>

#include "binding_common.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace collectives {

namespace {

// Inputs up to this size are copied here where the result overwrites them.
constexpr std::size_t most_copied = 64 << 10;
constexpr std::size_t most_remembered = 1024;

constexpr int readable = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
constexpr int writable = readable | NPY_ARRAY_WRITEABLE;

// Who may use a communicator: one thread at a time, until it is shut.
struct Latch {
    bool taken = false;
    bool shut = false;

    bool acquire() {
        if (taken || shut) return false;
        taken = true;
        return true;
    }
    void release() { taken = false; }
};

bool same_shape(const PyArrayObject* a, const PyArrayObject* b) {
    if (PyArray_NDIM(a) != PyArray_NDIM(b)) return false;
    for (int i = 0; i < PyArray_NDIM(a); ++i) {
        if (PyArray_DIM(a, i) != PyArray_DIM(b, i)) return false;
    }
    return true;
}

PyArrayObject* as_array(PyObject* object) {
    return Py_TYPE(object) == array_type() ? reinterpret_cast<PyArrayObject*>(object) : nullptr;
}

std::byte* data_of(PyArrayObject* array) { return static_cast<std::byte*>(PyArray_DATA(array)); }

// What both kinds of repeated calls need of their communicator.
struct Line {
    std::shared_ptr<Group> group;
    nb::object keep;  // the Latch
    Latch* latch = nullptr;
    double timeout = 0;
    std::vector<std::byte> copy;

    // Run it and give a new reference to `result`; nullptr with an error set.
    PyObject* run(const std::shared_ptr<const Operation>& operation, std::byte* in, std::byte* out,
                  bool copied, PyObject* result) {
        if (copied) {
            copy.resize(operation->in_bytes());
            std::memcpy(copy.data(), in, copy.size());
            in = copy.data();
        }
        std::exception_ptr error;
        PyThreadState* const thread = PyEval_SaveThread();
        try {
            group->run(operation, in, out, timeout, interrupted);
        } catch (...) {
            error = std::current_exception();
        }
        PyEval_RestoreThread(thread);
        latch->release();
        if (!error) {
            Py_INCREF(result);
            return result;
        }
        try {
            std::rethrow_exception(error);
        } catch (...) {
            set_python_error();
        }
        return nullptr;
    }
};

// --- the same call, found again by its arguments

struct Key {
    PyObject* descr = nullptr;  // all of these are kept alive by the entry
    PyObject* op = nullptr;
    PyObject* algorithm = nullptr;
    std::size_t elements = 0;
    bool in_place = false;

    bool operator==(const Key&) const = default;
};

struct HashKey {
    std::size_t operator()(const Key& key) const {
        const auto word = [](const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); };
        std::size_t h = key.elements * 0x9e3779b97f4a7c15ULL;
        h ^= word(key.descr) + (word(key.op) << 7) + (word(key.algorithm) << 13) + (key.in_place ? 1 : 0);
        return h ^ h >> 29;
    }
};

struct Remembered {
    std::shared_ptr<const Operation> operation;
    bool copied = false;
    std::vector<nb::object> keep;
};

struct Repeater {
    Line line;
    nb::object slow;   // the long way, with the same arguments
    nb::object empty;  // numpy.empty_like
    std::unordered_map<Key, Remembered, HashKey> known;

    PyObject* call(PyObject* const* args, std::size_t nargs, PyObject* names) {
        PyObject* result = nullptr;
        if (fast(args, nargs, names, result)) return result;
        return PyObject_Vectorcall(slow.ptr(), args, nargs, names);
    }

    // False: nothing has happened, and the long way has to be gone.
    bool fast(PyObject* const* args, std::size_t nargs, PyObject* names, PyObject*& result);
};

struct Names {
    PyObject* op = PyUnicode_InternFromString("op");
    PyObject* out = PyUnicode_InternFromString("out");
    PyObject* algorithm = PyUnicode_InternFromString("algorithm");
    PyObject* sum = PyUnicode_InternFromString("sum");
    PyObject* automatic = PyUnicode_InternFromString("auto");
};

const Names& names_of_arguments() {
    static const Names names;  // for the life of the process
    return names;
}

bool Repeater::fast(PyObject* const* args, std::size_t nargs, PyObject* names, PyObject*& result) {
    if (nargs == 0 || nargs > 2) return false;
    const Names& known_names = names_of_arguments();
    PyArrayObject* const x = as_array(args[0]);
    Key key{nullptr, nargs == 2 ? args[1] : known_names.sum, known_names.automatic, 0, false};
    PyObject* out = Py_None;
    const Py_ssize_t keywords = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t i = 0; i < keywords; ++i) {
        PyObject* const name = PyTuple_GET_ITEM(names, i);
        PyObject* const value = args[nargs + static_cast<std::size_t>(i)];
        if (name == known_names.out) {
            out = value;
        } else if (name == known_names.op && nargs == 1) {
            key.op = value;
        } else if (name == known_names.algorithm) {
            key.algorithm = value;
        } else {
            return false;
        }
    }
    if (x == nullptr || !PyArray_CHKFLAGS(x, readable)) return false;
    key.descr = reinterpret_cast<PyObject*>(PyArray_DESCR(x));
    key.elements = elements_of(x);
    key.in_place = out == args[0];
    const auto place = known.find(key);
    if (place == known.end()) return false;
    const Remembered& call = place->second;
    std::byte* const from = data_of(x);
    nb::object fresh;
    if (key.in_place) {
        if (!PyArray_CHKFLAGS(x, NPY_ARRAY_WRITEABLE)) return false;
    } else if (out == Py_None) {
        PyObject* const one = PyObject_Vectorcall(empty.ptr(), args, 1, nullptr);
        if (one == nullptr) return true;  // out of memory: the error is set
        fresh = nb::steal(one);
        out = one;
    } else {
        PyArrayObject* const to = as_array(out);
        if (to == nullptr || PyArray_DESCR(to) != PyArray_DESCR(x) || !PyArray_CHKFLAGS(to, writable) ||
            !same_shape(x, to)) {
            return false;
        }
        const auto a = reinterpret_cast<std::uintptr_t>(from);
        const auto b = reinterpret_cast<std::uintptr_t>(data_of(to));
        const std::size_t n = call.operation->out_bytes();
        if (a < b + n && b < a + n) return false;
    }
    if (!line.latch->acquire()) return false;
    result = line.run(call.operation, from, data_of(reinterpret_cast<PyArrayObject*>(out)), call.copied, out);
    return true;
}

// --- the same arrays every time

struct Plan {
    Line line;
    std::shared_ptr<const Operation> operation;
    nb::object x;
    nb::object out;
    nb::object refuse;  // raises what is wrong
    bool copied = false;

    PyObject* call() {
        if (!line.latch->acquire()) return PyObject_Vectorcall(refuse.ptr(), nullptr, 0, nullptr);
        return line.run(operation, data_of(reinterpret_cast<PyArrayObject*>(x.ptr())),
                        data_of(reinterpret_cast<PyArrayObject*>(out.ptr())), copied, out.ptr());
    }
};

// --- as Python types with a direct way to be called

template <typename T>
struct Callable {
    PyObject_HEAD vectorcallfunc enter;
    T* value;
};

template <typename T>
T& value_of(PyObject* self) {
    return *reinterpret_cast<Callable<T>*>(self)->value;
}

template <typename T>
bool is_cleared(PyObject* self) {
    if (reinterpret_cast<Callable<T>*>(self)->value != nullptr) return false;
    PyErr_SetString(PyExc_RuntimeError, "its communicator is gone");
    return true;
}

PyObject* enter_repeater(PyObject* self, PyObject* const* args, std::size_t nargs, PyObject* names) {
    if (is_cleared<Repeater>(self)) return nullptr;
    return value_of<Repeater>(self).call(args, static_cast<std::size_t>(PyVectorcall_NARGS(nargs)), names);
}

PyObject* enter_plan(PyObject* self, PyObject* const*, std::size_t nargs, PyObject* names) {
    if (is_cleared<Plan>(self)) return nullptr;
    if (PyVectorcall_NARGS(nargs) != 0 || (names != nullptr && PyTuple_GET_SIZE(names) != 0)) {
        PyErr_SetString(PyExc_TypeError, "a plan takes no arguments: it was made for its arrays");
        return nullptr;
    }
    return value_of<Plan>(self).call();
}

template <typename T>
int visit_value(PyObject* self, visitproc visit, void* arg);

template <>
int visit_value<Repeater>(PyObject* self, visitproc visit, void* arg) {
    if (auto* repeater = reinterpret_cast<Callable<Repeater>*>(self)->value) Py_VISIT(repeater->slow.ptr());
    return 0;
}

template <>
int visit_value<Plan>(PyObject* self, visitproc visit, void* arg) {
    if (auto* plan = reinterpret_cast<Callable<Plan>*>(self)->value) {
        Py_VISIT(plan->x.ptr());
        Py_VISIT(plan->out.ptr());
        Py_VISIT(plan->refuse.ptr());
    }
    return 0;
}

template <typename T>
int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    return visit_value<T>(self, visit, arg);
}

template <typename T>
int clear(PyObject* self) {
    delete std::exchange(reinterpret_cast<Callable<T>*>(self)->value, nullptr);
    return 0;
}

template <typename T>
void deallocate(PyObject* self) {
    PyTypeObject* const type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear<T>(self);
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

// A Repeater looks like the long way to those who ask for its documentation.
PyObject* attribute_of_slow(PyObject* self, void* name) {
    if (is_cleared<Repeater>(self)) return nullptr;
    return PyObject_GetAttrString(value_of<Repeater>(self).slow.ptr(), static_cast<const char*>(name));
}

PyObject* slow_of(PyObject* self, void*) {
    if (is_cleared<Repeater>(self)) return nullptr;
    return nb::object(value_of<Repeater>(self).slow).release().ptr();
}

PyObject* known_to(PyObject* self, void*) {
    if (is_cleared<Repeater>(self)) return nullptr;
    return PyLong_FromSize_t(value_of<Repeater>(self).known.size());
}

PyObject* out_of(PyObject* self, void*) {
    if (is_cleared<Plan>(self)) return nullptr;
    return nb::object(value_of<Plan>(self).out).release().ptr();
}

char name_of_name[] = "__name__";
char name_of_qualname[] = "__qualname__";
char name_of_doc[] = "__doc__";

PyGetSetDef repeater_attributes[] = {
    {"known", known_to, nullptr, "How many calls it remembers.", nullptr},
    {"__wrapped__", slow_of, nullptr, nullptr, nullptr},
    {name_of_name, attribute_of_slow, nullptr, nullptr, name_of_name},
    {name_of_qualname, attribute_of_slow, nullptr, nullptr, name_of_qualname},
    {name_of_doc, attribute_of_slow, nullptr, nullptr, name_of_doc},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyGetSetDef plan_attributes[] = {
    {"out", out_of, nullptr, "The array that each call writes to and returns.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

template <typename T>
PyTypeObject* make_type(const char* name, const char* doc, PyGetSetDef* attributes) {
    static PyMemberDef members[] = {
        {"__vectorcalloffset__", T_PYSSIZET, offsetof(Callable<T>, enter), READONLY, nullptr},
        {nullptr, 0, 0, 0, nullptr}};
    PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(deallocate<T>)},
                           {Py_tp_traverse, reinterpret_cast<void*>(traverse<T>)},
                           {Py_tp_clear, reinterpret_cast<void*>(clear<T>)},
                           {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                           {Py_tp_members, members},
                           {Py_tp_getset, attributes},
                           {doc == nullptr ? 0 : Py_tp_doc, const_cast<char*>(doc)},
                           {0, nullptr}};
    PyType_Spec spec{name, sizeof(Callable<T>), 0,
                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                         Py_TPFLAGS_DISALLOW_INSTANTIATION,
                     slots};
    return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
}

template <typename T>
nb::object make_callable(PyTypeObject* type, vectorcallfunc enter, std::unique_ptr<T> value) {
    auto* const self = PyObject_GC_New(Callable<T>, type);
    if (self == nullptr) throw nb::python_error();
    self->enter = enter;
    self->value = value.release();
    PyObject_GC_Track(reinterpret_cast<PyObject*>(self));
    return nb::steal(reinterpret_cast<PyObject*>(self));
}

Line make_line(nb::handle group, nb::object latch, double timeout) {
    Line line;
    line.group = group_of(group);
    line.latch = nb::cast<Latch*>(latch);
    line.keep = std::move(latch);
    line.timeout = timeout;
    return line;
}

PyTypeObject* repeater_type = nullptr;
PyTypeObject* plan_type = nullptr;

}  // namespace

void add_repeated_calls(nb::module_& module) {
    nb::class_<Latch>(module, "Latch")
        .def(nb::init<>())
        .def("acquire", &Latch::acquire)
        .def("release", &Latch::release)
        .def_ro("taken", &Latch::taken)
        .def("shut", [](Latch& self) { self.shut = true; });

    repeater_type = make_type<Repeater>("native._engine.Repeater", nullptr, repeater_attributes);
    plan_type = make_type<Plan>("collectives.Plan",
                                "An allreduce of the same arrays, run by calling it. Returns `out`.",
                                plan_attributes);
    module.attr("Repeater") = nb::handle(reinterpret_cast<PyObject*>(repeater_type));
    module.attr("Plan") = nb::handle(reinterpret_cast<PyObject*>(plan_type));

    module.def(
        "repeater",
        [](nb::handle group, nb::object latch, double timeout, nb::object slow) {
            auto repeater = std::make_unique<Repeater>();
            repeater->line = make_line(group, std::move(latch), timeout);
            repeater->slow = std::move(slow);
            repeater->empty = nb::module_::import_("numpy").attr("empty_like");
            return make_callable(repeater_type, enter_repeater, std::move(repeater));
        },
        "group"_a, "latch"_a, "timeout"_a, "slow"_a);
    module.def(
        "remember",
        [](nb::handle self, nb::object x, nb::object op, nb::object algorithm, bool in_place,
           const PyOperation& operation, bool copied) {
            if (Py_TYPE(self.ptr()) != repeater_type) throw nb::type_error("not a Repeater");
            auto& known = value_of<Repeater>(self.ptr()).known;
            PyArrayObject* const array = as_array(x.ptr());
            if (array == nullptr || (copied && operation.operation->in_bytes() > most_copied)) return;
            const nb::object descr = nb::borrow(reinterpret_cast<PyObject*>(PyArray_DESCR(array)));
            if (known.size() >= most_remembered) known.clear();
            known[{descr.ptr(), op.ptr(), algorithm.ptr(), elements_of(array), in_place}] = {
                operation.operation, copied, {descr, op, algorithm}};
        },
        "repeater"_a, "x"_a, "op"_a, "algorithm"_a, "in_place"_a, "operation"_a, "copied"_a);
    module.def(
        "plan",
        [](nb::handle group, nb::object latch, double timeout, const PyOperation& operation, nb::object x,
           nb::object out, bool copied, nb::object refuse) {
            auto plan = std::make_unique<Plan>();
            plan->line = make_line(group, std::move(latch), timeout);
            plan->operation = operation.operation;
            for (const nb::object& array : {x, out}) {
                if (as_array(array.ptr()) == nullptr) throw nb::type_error("a plan needs NumPy arrays");
            }
            plan->x = std::move(x);
            plan->out = std::move(out);
            plan->copied = copied;
            plan->refuse = std::move(refuse);
            return make_callable(plan_type, enter_plan, std::move(plan));
        },
        "group"_a, "latch"_a, "timeout"_a, "operation"_a, "x"_a, "out"_a, "copied"_a, "refuse"_a);
}

}  // namespace collectives
