// The common part of repeated calls: the latch of a communicator, running one operation, and Python types
// that are called directly (vectorcall).
//
// Invariant: everything here runs with the GIL, which is released only around the operation; if the operation
// is short, only while it waits.
#pragma once

#include <nanobind/nanobind.h>
#include <structmember.h>

#include <utility>
#include <vector>

#include "base/copy.hpp"
#include "bind/common.hpp"

namespace collectives {

constexpr int readable = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
constexpr int writable = readable | NPY_ARRAY_WRITEABLE;

inline PyArrayObject* as_array(PyObject* object) {
    return Py_TYPE(object) == array_type() ? reinterpret_cast<PyArrayObject*>(object) : nullptr;
}

inline std::byte* data_of(PyObject* array) {
    return static_cast<std::byte*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array)));
}

// A lock that never waits: one thread at a time may use a communicator, until the latch is shut.
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

// The GIL while an operation runs. A short operation keeps the GIL until it has to wait: releasing it and
// taking it back takes a tenth of the time of the fastest calls.
class Gil final : public CallerLock {
  public:
    explicit Gil(const Operation& operation) {
        const std::size_t bytes = operation.in_bytes() + operation.out_bytes();
        if (bytes * static_cast<std::size_t>(operation.program().size) > most_of_all) release();
    }

    void release() override {
        if (thread_ == nullptr) thread_ = PyEval_SaveThread();
    }
    void take_back() {
        if (thread_ != nullptr) PyEval_RestoreThread(std::exchange(thread_, nullptr));
    }

  private:
    // Bytes of all ranks' inputs and outputs together: work for a few microseconds.
    static constexpr std::size_t most_of_all = 64 << 10;

    PyThreadState* thread_ = nullptr;
};

// Runs operations of one communicator.
struct Caller {
    std::shared_ptr<Group> group;
    nanobind::object keep;  // the Latch
    Latch* latch = nullptr;
    double timeout = 0;
    std::vector<std::byte> copy;

    static Caller to(nanobind::handle group, nanobind::object latch, double timeout) {
        Caller caller;
        caller.group = group_of(group);
        caller.latch = nanobind::cast<Latch*>(latch);
        caller.keep = std::move(latch);
        caller.timeout = timeout;
        return caller;
    }

    // The caller has acquired the latch, which is released. Returns a new reference to `result`, or nullptr
    // with a Python error set.
    PyObject* run(const std::shared_ptr<const Operation>& operation, std::byte* in, std::byte* out,
                  bool copied, PyObject* result) {
        if (copied) {
            copy.resize(operation->in_bytes());
            copy_bytes(copy.data(), in, copy.size());
            in = copy.data();
        }
        std::exception_ptr error;
        Gil gil(*operation);
        try {
            group->run(operation, in, out, timeout, interrupted, &gil);
        } catch (...) {
            error = std::current_exception();
        }
        gil.take_back();
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

// --- a Python object that is called by vectorcall; T has `int visit(visitproc, void*)`

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

template <typename T>
int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    T* const value = reinterpret_cast<Callable<T>*>(self)->value;
    return value == nullptr ? 0 : value->visit(visit, arg);
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

// `bind`: the descriptor function for a type whose objects are methods of a class; null if they are not.
template <typename T>
PyTypeObject* make_type(const char* name, const char* doc, PyGetSetDef* attributes,
                        descrgetfunc bind = nullptr) {
    static PyMemberDef members[] = {
        {"__vectorcalloffset__", T_PYSSIZET, offsetof(Callable<T>, enter), READONLY, nullptr},
        {nullptr, 0, 0, 0, nullptr}};
    std::vector<PyType_Slot> slots{{Py_tp_dealloc, reinterpret_cast<void*>(deallocate<T>)},
                                   {Py_tp_traverse, reinterpret_cast<void*>(traverse<T>)},
                                   {Py_tp_clear, reinterpret_cast<void*>(clear<T>)},
                                   {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                   {Py_tp_members, members},
                                   {Py_tp_getset, attributes}};
    if (doc != nullptr) slots.push_back({Py_tp_doc, const_cast<char*>(doc)});
    if (bind != nullptr) slots.push_back({Py_tp_descr_get, reinterpret_cast<void*>(bind)});
    slots.push_back({0, nullptr});
    PyType_Spec spec{name, sizeof(Callable<T>), 0,
                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                         Py_TPFLAGS_DISALLOW_INSTANTIATION |
                         (bind == nullptr ? 0 : Py_TPFLAGS_METHOD_DESCRIPTOR),
                     slots.data()};
    return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
}

template <typename T>
nanobind::object make_callable(PyTypeObject* type, vectorcallfunc enter, std::unique_ptr<T> value) {
    auto* const self = PyObject_GC_New(Callable<T>, type);
    if (self == nullptr) throw nanobind::python_error();
    self->enter = enter;
    self->value = value.release();
    PyObject_GC_Track(reinterpret_cast<PyObject*>(self));
    return nanobind::steal(reinterpret_cast<PyObject*>(self));
}

}  // namespace collectives
