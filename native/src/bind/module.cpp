// The Python module of the engine. Only files in this folder use Python.
//
// Invariant: the GIL is released around everything that can wait, and Python objects are used only with the
// GIL. The Python object that starts an asynchronous operation keeps its arrays, and releases them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/cpu.hpp"
#include "base/export.hpp"
#include "base/sha256.hpp"
#include "bind/common.hpp"
#include "core/warnings.hpp"
#include "link/frame.hpp"
#include "reduce/reduce.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace collectives {

namespace {

// --- errors

const char* class_name(ErrorKind kind) {
    switch (kind) {
        case ErrorKind::peer_lost:
            return "PeerLost";
        case ErrorKind::op_timeout:
            return "OpTimeout";
        case ErrorKind::desync:
            return "DesyncError";
        case ErrorKind::stale_epoch:
            return "StaleEpoch";
        case ErrorKind::aborted:
            return "Aborted";
        case ErrorKind::config_mismatch:
            return "ConfigMismatch";
        case ErrorKind::auth:
            return "AuthError";
        case ErrorKind::transport_unavailable:
            return "TransportUnavailable";
        case ErrorKind::invalid:
        case ErrorKind::interrupted:
            break;
    }
    return nullptr;
}

}  // namespace

ErrorKind kind_named(const std::string& name) {
    for (const ErrorKind kind : {ErrorKind::peer_lost, ErrorKind::op_timeout, ErrorKind::desync}) {
        if (name == class_name(kind)) return kind;
    }
    return ErrorKind::aborted;
}

nb::object to_python(const Error& error) {
    const char* name = class_name(error.kind());
    if (name == nullptr) return nb::steal(PyObject_CallFunction(PyExc_ValueError, "s", error.what()));
    const nb::object type = nb::module_::import_("collectives.native.errors").attr(name);
    if (error.kind() == ErrorKind::peer_lost || error.kind() == ErrorKind::op_timeout) {
        return type(error.what(), nb::cast(error.ranks()));
    }
    return type(error.what());
}

void set_python_error() {
    try {
        throw;
    } catch (const Error& error) {
        // If a signal has interrupted the wait, the handler's exception is already set.
        if (error.kind() == ErrorKind::interrupted && PyErr_Occurred() != nullptr) return;
        try {
            const nb::object value = to_python(error);
            PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())), value.ptr());
        } catch (nb::python_error& raised) {
            // The error's __init__ is Python code, in which a signal handler may raise; that exception is
            // kept.
            raised.restore();
        }
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
}

namespace {

// A handler of the user may fail; then the warning is lost, and nothing else.
void log(const std::string& warning) {
    try {
        nb::module_::import_("logging").attr("getLogger")("collectives").attr("warning")("%s", warning);
    } catch (nb::python_error& error) {
        error.discard_as_unraisable("logging a warning of collectives");
    }
}

}  // namespace

const Interrupted interrupted = [] {
    const nb::gil_scoped_acquire gil;
    for (const std::string& warning : warnings::take()) log(warning);
    return PyErr_CheckSignals() != 0;
};

// --- arrays

PyTypeObject* array_type() {
    static PyObject* type = nb::object(nb::module_::import_("numpy").attr("ndarray")).release().ptr();
    return reinterpret_cast<PyTypeObject*>(type);
}

std::byte* memory(nb::handle object, std::uint64_t bytes, std::size_t unit, const char* name) {
    if (object.is_none()) {
        if (bytes == 0) return nullptr;
        throw nb::value_error((std::string(name) + " is missing").c_str());
    }
    if (PyObject_TypeCheck(object.ptr(), array_type()) == 0) {
        throw nb::type_error((std::string(name) + " is not a NumPy array").c_str());
    }
    if (bytes == 0) return nullptr;  // an array without bytes may have elements of size 0
    auto* array = reinterpret_cast<PyArrayObject*>(object.ptr());
    if (!PyArray_CHKFLAGS(array, NPY_ARRAY_C_CONTIGUOUS) || elements_of(array) * unit != bytes) {
        throw nb::value_error((std::string(name) + " has another size than the operation, or gaps").c_str());
    }
    return static_cast<std::byte*>(PyArray_DATA(array));
}

std::byte* input(const Operation& operation, nb::handle array) {
    return memory(array, array.is_none() ? 0 : operation.in_bytes(), operation.unit(), "the input");
}

std::byte* output(const Operation& operation, nb::handle array) {
    return memory(array, array.is_none() ? 0 : operation.out_bytes(), operation.unit(), "the output");
}

namespace {

// --- the module

void translate(const std::exception_ptr& pointer, void*) {
    try {
        std::rethrow_exception(pointer);
    } catch (const Error&) {
        set_python_error();
    }
}

void reduce_arrays(nb::handle dst, const nb::sequence& sources, unsigned dtype, unsigned op, double scale) {
    if (!is_dtype(dtype) || !is_op(op)) throw nb::value_error("an unknown dtype or op");
    const auto type = static_cast<DType>(dtype);
    const ReduceFn kernel = reduce_kernel(type, static_cast<Op>(op));
    if (kernel == nullptr) throw nb::type_error("this op has no meaning for this dtype");
    const std::uint64_t count = nb::cast<std::uint64_t>(dst.attr("size"));
    const std::size_t unit = size_of(type);
    std::vector<const std::byte*> from;
    const auto check = [&](nb::handle array) {
        if (nb::cast<std::size_t>(array.attr("itemsize")) != unit) {
            throw nb::type_error("an array's elements have another size than the dtype");
        }
    };
    check(dst);
    for (const nb::handle source : sources) {
        check(source);
        from.push_back(memory(source, count * unit, unit, "a source"));
    }
    if (from.empty()) throw nb::value_error("there is nothing to reduce");
    std::byte* to = memory(dst, count * unit, unit, "the output");
    const nb::gil_scoped_release nogil;
    kernel(to, from.data(), from.size(), static_cast<std::size_t>(count), scale);
}

nb::bytes digest_bytes(const std::array<std::byte, 32>& digest) {
    return nb::bytes(digest.data(), digest.size());
}

std::span<const std::byte> span_of(const nb::bytes& data) {
    return {reinterpret_cast<const std::byte*>(data.c_str()), data.size()};
}

template <typename Names>
nb::dict numbered(const Names& names) {
    nb::dict codes;
    int code = 0;
    for (const auto& name : names) codes[nb::str(std::string(name).c_str())] = code++;
    return codes;
}

}  // namespace

}  // namespace collectives

NB_MODULE(_engine, module) {
    using namespace collectives;
    nb::register_exception_translator(translate);
    // Communicators that a program does not close live until it ends, which is no reason for a warning.
    nb::set_leak_warnings(false);

    std::vector<std::string> kinds;
    for (int i = 0; i < n_collectives; ++i) kinds.emplace_back(collective_name(static_cast<Collective>(i)));
    kinds[static_cast<std::size_t>(Collective::send)] = "send";
    module.attr("DTYPES") = numbered(dtype_names);
    module.attr("OPS") = numbered(op_names);
    module.attr("COLLECTIVES") = numbered(kinds);
    module.attr("CALLER_OP") = static_cast<int>(caller_op);
    module.attr("VERSION") = LIBRARY_VERSION;
    module.attr("WIRE_VERSION") = wire_version;
    module.attr("INTERFACE") = COLLECTIVES_INTERFACE;

    module.def(
        "supports",
        [](unsigned dtype, unsigned op) {
            return is_dtype(dtype) && is_op(op) && supports(static_cast<DType>(dtype), static_cast<Op>(op));
        },
        "dtype"_a, "op"_a);
    module.def("reduce", &reduce_arrays, "dst"_a, "sources"_a, "dtype"_a, "op"_a, "scale"_a = 1.0);
    module.def("cpu_features", &cpu_features);
    module.def("sha256", [](const nb::bytes& data) { return digest_bytes(sha256(span_of(data))); }, "data"_a);
    module.def(
        "hmac_sha256",
        [](const nb::bytes& key, const nb::bytes& data) {
            return digest_bytes(hmac_sha256(span_of(key), span_of(data)));
        },
        "key"_a, "data"_a);

    add_programs(module);
    add_groups(module);
    add_devices(module);
    add_leader(module);
    add_nccl(module);
    add_repeaters(module);
    add_plans(module);
    add_encoding(module);
}
