// Repeated calls, which go from Python's call directly to the engine.
//
// Invariant: a call takes this path only if its arguments are exactly like those of a call that the Python
// code has accepted; all other calls run the Python code.
#include <nanobind/stl/unique_ptr.h>

#include <array>
#include <climits>
#include <cstring>
#include <unordered_map>

#include "bind/callable.hpp"
#include "bind/owners.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace collectives {

namespace {

// Inputs of up to this size are copied here if the result would overwrite them.
constexpr std::size_t most_copied = 256 << 10;
constexpr std::size_t most_remembered = 1024;
constexpr std::size_t most_parameters = 3;
constexpr int most_dimensions = 6;

nb::object interned(nb::handle name) {
    PyObject* text = nb::borrow(name).release().ptr();
    PyUnicode_InternInPlace(&text);
    return nb::steal(text);
}

// The word by which an argument is compared: for a number, such as a rank, its value as an odd word, which is
// no address; for everything else the address of the object.
std::uintptr_t token(PyObject* value) {
    if (PyLong_CheckExact(value)) {
        int overflow = 0;
        const long number = PyLong_AsLongAndOverflow(value, &overflow);
        if (number >= 0 && number <= INT_MAX) return static_cast<std::uintptr_t>(number) << 1 | 1;
    }
    return reinterpret_cast<std::uintptr_t>(value);
}

// The key by which a call is found. The entry keeps alive all objects to which the key points.
struct Key {
    std::uintptr_t descr = 0;
    std::array<std::uintptr_t, most_parameters> values{};
    std::array<npy_intp, most_dimensions> shape{};
    int dimensions = 0;
    bool in_place = false;

    // Compares all words here, because comparing arrays would call memcmp.
    bool operator==(const Key& other) const {
        std::uintptr_t differs = descr ^ other.descr;
        for (std::size_t i = 0; i < values.size(); ++i) differs |= values[i] ^ other.values[i];
        for (std::size_t i = 0; i < shape.size(); ++i) {
            differs |= static_cast<std::uintptr_t>(shape[i] ^ other.shape[i]);
        }
        return differs == 0 && dimensions == other.dimensions && in_place == other.in_place;
    }

    bool take(const PyArrayObject* x) {
        dimensions = PyArray_NDIM(x);
        if (dimensions > most_dimensions) return false;
        for (int i = 0; i < dimensions; ++i) shape[static_cast<std::size_t>(i)] = PyArray_DIM(x, i);
        descr = reinterpret_cast<std::uintptr_t>(PyArray_DESCR(x));
        return true;
    }
};

struct HashKey {
    std::size_t operator()(const Key& key) const {
        std::size_t h = key.descr ^ (key.in_place ? 1 : 0);
        const auto mix = [&h](std::size_t word) { h = (h ^ word) * 0x9e3779b97f4a7c15ULL; };
        for (int i = 0; i < key.dimensions; ++i) {
            mix(static_cast<std::size_t>(key.shape[static_cast<std::size_t>(i)]));
        }
        for (const std::uintptr_t value : key.values) mix(value);
        return h ^ h >> 29;
    }
};

enum class Input { as_it_is, copied, none };
enum class Result { none, fresh, x };  // fresh: `out`, or a new array

struct Remembered {
    std::shared_ptr<const Operation> operation;
    Input input = Input::as_it_is;
    Result result = Result::none;
    nb::object shape;  // shape of a fresh result, a tuple
    nb::object dtype;
    std::vector<nb::object> keep;
};

// An argument that the operation depends on, besides the arrays.
struct Parameter {
    nb::object name;
    nb::object fallback;
};

struct Repeater {
    Caller caller;
    nb::object empty;  // numpy.empty
    nb::object x;      // x and `out` are used if calls have no array arguments
    nb::object out;
    std::vector<Parameter> parameters;
    std::size_t positional = 0;  // the first so many parameters may be passed by position
    std::unordered_map<Key, Remembered, HashKey> known;
    const std::pair<const Key, Remembered>* last = nullptr;  // the call that was found last

    const Remembered* find(const Key& key);

    // Returns false, and has done nothing, if the Python code has to run.
    bool fast(PyObject* const* args, std::size_t nargs, PyObject* names, PyObject*& result);
    // Reads the arguments after x. `interning`: look up the interned object of each string. False for an
    // argument of an unknown kind.
    bool read(PyObject* const* args, std::size_t nargs, PyObject* names, Key& key, PyObject*& to,
              bool interning) const;
};

const Remembered* Repeater::find(const Key& key) {
    if (last == nullptr || !(last->first == key)) {
        const auto place = known.find(key);
        if (place == known.end()) return nullptr;
        last = &*place;
    }
    return &last->second;
}

PyObject* name_of_out() {
    static PyObject* const name = PyUnicode_InternFromString("out");  // for the life of the process
    return name;
}

bool Repeater::read(PyObject* const* args, std::size_t nargs, PyObject* names, Key& key, PyObject*& to,
                    bool interning) const {
    if (nargs > positional) return false;
    std::array<PyObject*, most_parameters> values{};
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        values[i] = i < nargs ? args[i] : parameters[i].fallback.ptr();
    }
    const Py_ssize_t keywords = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t k = 0; k < keywords; ++k) {
        PyObject* const name = PyTuple_GET_ITEM(names, k);
        PyObject* const value = args[nargs + static_cast<std::size_t>(k)];
        if (name == name_of_out()) {
            to = value;
            continue;
        }
        std::size_t i = nargs;
        while (i < parameters.size() && parameters[i].name.ptr() != name) ++i;
        if (i == parameters.size()) return false;
        values[i] = value;
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const bool text = interning && PyUnicode_CheckExact(values[i]);
        key.values[i] = token(text ? interned(values[i]).ptr() : values[i]);
    }
    return true;
}

bool has_shape(const PyArrayObject* array, PyObject* shape) {
    if (PyArray_NDIM(array) != PyTuple_GET_SIZE(shape)) return false;
    for (int i = 0; i < PyArray_NDIM(array); ++i) {
        if (PyArray_DIM(array, i) != PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, i))) return false;
    }
    return true;
}

// Whether the memory of `array` belongs to an mmap.mmap, and so may be mapped at other addresses, too.
bool is_mapped(const PyArrayObject* array) {
    PyObject* base = PyArray_BASE(array);
    while (base != nullptr && PyObject_TypeCheck(base, array_type()) != 0) {
        base = PyArray_BASE(reinterpret_cast<PyArrayObject*>(base));
    }
    if (base != nullptr && PyMemoryView_Check(base)) base = PyMemoryView_GET_BUFFER(base)->obj;
    return base != nullptr && std::strcmp(Py_TYPE(base)->tp_name, "mmap.mmap") == 0;
}

// Whether the result of a call with `x` can be stored in `array`, which must not share memory with x.
bool fits(const PyArrayObject* array, const PyArrayObject* x, const Remembered& call) {
    if (array == nullptr || PyArray_DESCR(array) != PyArray_DESCR(x) || !PyArray_CHKFLAGS(array, writable) ||
        !has_shape(array, call.shape.ptr())) {
        return false;
    }
    const auto a = reinterpret_cast<std::uintptr_t>(PyArray_DATA(x));
    const auto b = reinterpret_cast<std::uintptr_t>(PyArray_DATA(array));
    if (a < b + call.operation->out_bytes() && b < a + call.operation->in_bytes()) return false;
    return !is_mapped(array) || !is_mapped(x);
}

bool Repeater::fast(PyObject* const* args, std::size_t nargs, PyObject* names, PyObject*& result) {
    PyObject* from = x.ptr();
    if (from == nullptr) {
        if (nargs == 0) return false;
        from = args[0];
        ++args;
        --nargs;
    }
    PyArrayObject* const array = as_array(from);
    if (array == nullptr || !PyArray_CHKFLAGS(array, readable)) return false;
    Key key;
    PyObject* to = Py_None;
    if (!key.take(array) || !read(args, nargs, names, key, to, false)) return false;
    key.in_place = to == from;
    const Remembered* found = find(key);
    if (found == nullptr) {
        if (!read(args, nargs, names, key, to, true)) return false;
        found = find(key);
    }
    if (found == nullptr) return false;
    const Remembered& call = *found;
    nb::object fresh;
    std::byte* memory = nullptr;
    if (call.result == Result::none) {
        if (to != Py_None && (to != from || !PyArray_CHKFLAGS(array, NPY_ARRAY_WRITEABLE))) return false;
        to = Py_None;
        if (out.is_valid()) memory = data_of(out.ptr());
    } else if (call.result == Result::x) {
        if (!PyArray_CHKFLAGS(array, NPY_ARRAY_WRITEABLE) || (to != Py_None && to != from)) return false;
        to = from;
    } else if (to == Py_None) {
        PyObject* const wanted[] = {call.shape.ptr(), call.dtype.ptr()};
        fresh = nb::steal(PyObject_Vectorcall(empty.ptr(), wanted, 2, nullptr));
        if (!fresh.is_valid()) return true;  // out of memory: the error is set
        to = fresh.ptr();
    } else if (!fits(as_array(to), array, call)) {
        return false;
    }
    if (!caller.latch->acquire()) return false;
    if (call.result != Result::none) memory = data_of(to);
    std::byte* const in = call.input == Input::none ? nullptr : data_of(from);
    if (in != nullptr) announce(*caller.group, from);
    if (memory != nullptr && to != Py_None) announce(*caller.group, to);
    result = caller.run(call.operation, in, memory, call.input == Input::copied, to);
    return true;
}

// The base of objects whose methods are repeated: a list of their Repeaters, one for each method; None where
// it is not made yet.
struct Repeating {
    PyObject_HEAD PyObject* repeaters;
};

int traverse_repeating(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(reinterpret_cast<Repeating*>(self)->repeaters);
    return 0;
}

int clear_repeating(PyObject* self) {
    Py_CLEAR(reinterpret_cast<Repeating*>(self)->repeaters);
    return 0;
}

void deallocate_repeating(PyObject* self) {
    PyTypeObject* const type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear_repeating(self);
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

PyTypeObject* make_repeating() {
    static PyMemberDef members[] = {
        {"_repeaters", T_OBJECT_EX, offsetof(Repeating, repeaters), 0, "One for each repeated method."},
        {nullptr, 0, 0, 0, nullptr}};
    static PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(deallocate_repeating)},
                                  {Py_tp_traverse, reinterpret_cast<void*>(traverse_repeating)},
                                  {Py_tp_clear, reinterpret_cast<void*>(clear_repeating)},
                                  {Py_tp_members, members},
                                  {0, nullptr}};
    PyType_Spec spec{"collectives.native._engine.Repeating", sizeof(Repeating), 0,
                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, slots};
    return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
}

PyTypeObject* repeating = nullptr;

// A method of a class derived from Repeating. Calls that its Repeater does not know run the Python function.
// The caller holds the object, so it lives as long as the call.
struct Method {
    nb::object function;
    Py_ssize_t index = 0;

    PyObject* call(PyObject* const* args, std::size_t nargs, PyObject* names) const {
        PyObject* result = nullptr;
        Repeater* const repeater = nargs > 0 ? repeater_of(args[0]) : nullptr;
        if (repeater != nullptr && repeater->fast(args + 1, nargs - 1, names, result)) return result;
        return PyObject_Vectorcall(function.ptr(), args, nargs, names);
    }

    int visit(visitproc visit, void* arg) const {
        Py_VISIT(function.ptr());
        return 0;
    }

  private:
    Repeater* repeater_of(PyObject* object) const {
        if (!PyObject_TypeCheck(object, repeating)) return nullptr;
        PyObject* const all = reinterpret_cast<Repeating*>(object)->repeaters;
        if (all == nullptr || !PyList_Check(all) || index >= PyList_GET_SIZE(all)) return nullptr;
        PyObject* const one = PyList_GET_ITEM(all, index);
        return one == Py_None ? nullptr : nb::inst_ptr<Repeater>(one);
    }
};

PyObject* enter(PyObject* self, PyObject* const* args, std::size_t nargs, PyObject* names) {
    if (is_cleared<Method>(self)) return nullptr;
    return value_of<Method>(self).call(args, static_cast<std::size_t>(PyVectorcall_NARGS(nargs)), names);
}

PyObject* bind(PyObject* self, PyObject* object, PyObject*) {
    if (object == nullptr || object == Py_None) return nb::borrow(self).release().ptr();
    static PyObject* const method = nb::module_::import_("types").attr("MethodType").ptr();
    PyObject* const both[] = {self, object};
    return PyObject_Vectorcall(method, both, 2, nullptr);
}

// A Method has the name and documentation of its function.
PyObject* attribute_of_function(PyObject* self, void* name) {
    if (is_cleared<Method>(self)) return nullptr;
    return PyObject_GetAttrString(value_of<Method>(self).function.ptr(), static_cast<const char*>(name));
}

PyObject* function_of(PyObject* self, void*) {
    if (is_cleared<Method>(self)) return nullptr;
    return nb::object(value_of<Method>(self).function).release().ptr();
}

char name_of_name[] = "__name__";
char name_of_qualname[] = "__qualname__";
char name_of_doc[] = "__doc__";
char name_of_module[] = "__module__";

PyGetSetDef attributes[] = {{"__wrapped__", function_of, nullptr, nullptr, nullptr},
                            {name_of_name, attribute_of_function, nullptr, nullptr, name_of_name},
                            {name_of_qualname, attribute_of_function, nullptr, nullptr, name_of_qualname},
                            {name_of_module, attribute_of_function, nullptr, nullptr, name_of_module},
                            {name_of_doc, attribute_of_function, nullptr, nullptr, name_of_doc},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};

void add_parameters(Repeater& repeater, const nb::tuple& parameters) {
    for (const nb::handle parameter : parameters) {
        repeater.parameters.push_back({interned(parameter[0]), nb::borrow(parameter[1])});
    }
    if (repeater.parameters.size() > most_parameters) throw nb::value_error("too many parameters");
}

void remember(Repeater& repeater, nb::handle x, const nb::tuple& values, bool in_place,
              const PyOperation& operation, int input, nb::handle result) {
    const PyArrayObject* const array = as_array(x.ptr());
    Remembered call{operation.operation, static_cast<Input>(input)};
    if (values.size() != repeater.parameters.size()) throw nb::value_error("a value for each parameter");
    if (array == nullptr || (call.input == Input::copied && call.operation->in_bytes() > most_copied)) return;
    Key key;
    if (!key.take(array)) return;
    key.in_place = in_place;
    for (std::size_t i = 0; i < values.size(); ++i) {
        // Equal strings must be the same object, or the same call would be remembered many times.
        const nb::handle value = values[i];
        if (PyUnicode_CheckExact(value.ptr())) {
            call.keep.push_back(interned(value));
            key.values[i] = token(call.keep.back().ptr());
        } else if (value.is_none()) {
            key.values[i] = token(value.ptr());
        } else if (key.values[i] = token(value.ptr()); key.values[i] % 2 == 0) {
            return;
        }
    }
    call.dtype = nb::borrow(reinterpret_cast<PyObject*>(PyArray_DESCR(array)));
    if (result.is(x)) {
        call.result = Result::x;
    } else if (!result.is_none()) {
        call.result = Result::fresh;
        call.shape = nb::borrow(result);
    }
    if (repeater.known.size() >= most_remembered) {
        repeater.last = nullptr;
        repeater.known.clear();
    }
    repeater.known[key] = std::move(call);
}

}  // namespace

void add_repeaters(nb::module_& module) {
    nb::class_<Latch>(module, "Latch")
        .def(nb::init<>())
        .def("acquire", &Latch::acquire)
        .def("release", &Latch::release)
        .def_ro("taken", &Latch::taken)
        .def("shut", [](Latch& self) { self.shut = true; });
    nb::class_<Repeater>(module, "Repeater").def_prop_ro("known", [](const Repeater& self) {
        return self.known.size();
    });
    repeating = make_repeating();
    module.attr("Repeating") = nb::handle(reinterpret_cast<PyObject*>(repeating));
    static PyTypeObject* const type =
        make_type<Method>("collectives.native._engine.Method", nullptr, attributes, bind);
    module.attr("Method") = nb::handle(reinterpret_cast<PyObject*>(type));
    module.def(
        "method",
        [](nb::object function, Py_ssize_t index) {
            auto method = std::make_unique<Method>();
            method->function = std::move(function);
            method->index = index;
            return make_callable(type, enter, std::move(method));
        },
        "function"_a, "index"_a);
    module.def(
        "repeater",
        [](nb::handle group, nb::object latch, double timeout, const nb::tuple& positional,
           const nb::tuple& keywords, nb::object arrays) {
            auto repeater = std::make_unique<Repeater>();
            repeater->caller = Caller::to(group, std::move(latch), timeout);
            repeater->empty = nb::module_::import_("numpy").attr("empty");
            add_parameters(*repeater, positional);
            repeater->positional = repeater->parameters.size();
            add_parameters(*repeater, keywords);
            if (!arrays.is_none()) {
                repeater->x = arrays[0];
                repeater->out = arrays[1];
            }
            return repeater;
        },
        "group"_a, "latch"_a, "timeout"_a, "positional"_a, "keywords"_a, "arrays"_a.none());
    module.attr("AS_IT_IS") = static_cast<int>(Input::as_it_is);
    module.attr("COPIED") = static_cast<int>(Input::copied);
    module.attr("NO_INPUT") = static_cast<int>(Input::none);
    module.def("remember", &remember, "repeater"_a, "x"_a, "values"_a, "in_place"_a, "operation"_a, "input"_a,
               "result"_a.none());
}

}  // namespace collectives
