#include "bind/owners.hpp"

#include <unordered_map>

#include "bind/common.hpp"
#include "link/lasting_memory.hpp"

namespace nb = nanobind;

namespace collectives {

namespace {

// To watch an array takes about as long as to copy so many bytes.
constexpr std::size_t shortest_watched = 32 << 10;

struct Watched {
    nb::object reference;  // weak
    std::uint64_t stretch = 0;
    std::span<std::byte> bytes;
};

using ByArray = std::unordered_map<PyObject*, Watched>;

// Never destroyed: references to arrays that outlive the module call back.
ByArray& watched() {
    static auto* const all = new ByArray;
    return *all;
}

std::span<std::byte> bytes_of(nb::handle array) {
    return {static_cast<std::byte*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr()))),
            nb::cast<std::size_t>(array.attr("nbytes"))};
}

PyObject* base_of(nb::handle array) { return PyArray_BASE(reinterpret_cast<PyArrayObject*>(array.ptr())); }

// Called with the weak reference, and the address of its array as a number.
PyObject* forget(PyObject* address, PyObject* /*reference*/) {
    const auto place = watched().find(static_cast<PyObject*>(PyLong_AsVoidPtr(address)));
    if (place != watched().end()) {
        const std::uint64_t stretch = place->second.stretch;
        watched().erase(place);
        LastingMemory::of_process().end(stretch);
    }
    Py_RETURN_NONE;
}

void watch(PyObject* array, std::span<std::byte> bytes) {
    static PyMethodDef forget_method{"forget", forget, METH_O, nullptr};
    const nb::object address = nb::steal(PyLong_FromVoidPtr(array));
    const nb::object callback = nb::steal(PyCFunction_New(&forget_method, address.ptr()));
    nb::object reference = nb::steal(PyWeakref_NewRef(array, callback.ptr()));
    if (!reference.is_valid()) return PyErr_Clear();  // its class has no weak references
    watched()[array] = {std::move(reference), LastingMemory::of_process().begin(bytes), bytes};
}

void find_owner(nb::handle array) {
    const std::span<std::byte> used = bytes_of(array);
    if (used.size() < shortest_watched) return;
    nb::handle owner = array;
    while (base_of(owner) != nullptr && PyObject_TypeCheck(base_of(owner), array_type()) != 0) {
        owner = base_of(owner);
    }
    const bool owns = PyArray_CHKFLAGS(reinterpret_cast<PyArrayObject*>(owner.ptr()), NPY_ARRAY_OWNDATA) != 0;
    if (base_of(owner) != nullptr || !owns) return LastingMemory::of_process().end_overlapping(used);
    const std::span<std::byte> bytes = bytes_of(owner);
    const auto place = watched().find(owner.ptr());
    if (place != watched().end()) {
        // An array can be given other memory (ndarray.__setstate__).
        LastingMemory& lasting = LastingMemory::of_process();
        const std::span<std::byte> known = place->second.bytes;
        if (known.data() == bytes.data() && known.size() == bytes.size()) {
            // Its stretch ends when a call uses the memory as a part of something that is no array.
            if (!lasting.lasts(place->second.stretch)) place->second.stretch = lasting.begin(bytes);
            return;
        }
        lasting.end(place->second.stretch);
        watched().erase(place);
    }
    watch(owner.ptr(), bytes);
}

}  // namespace

void announce(Group& group, nb::handle array) noexcept {
    if (!group.links().register_memory() || array.is_none()) return;
    try {
        find_owner(array);
    } catch (...) {
        PyErr_Clear();  // out of memory: this array gains nothing
    }
}

}  // namespace collectives
