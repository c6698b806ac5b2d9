// The handler that XLA calls to run a collective inside a compiled JAX function, in a module of its own.
//
// Invariant: nothing is copied. XLA owns the buffers, so Python may use their views only during the call. The
// GIL is held only while Python code runs, and no exception leaves the handler.
#include <nanobind/nanobind.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#include "bind/xla_ffi.hpp"

namespace nb = nanobind;
namespace xla = collectives::xla;

namespace {

// The Python function that runs call `number` on views of the buffers; it returns None, or an error text.
// Never destroyed, because XLA's threads may outlive the interpreter.
PyObject* runner = nullptr;

// The address for empty buffers, which XLA may pass without one; a memoryview needs an address.
char nothing = 0;

xla::Error* failure(const xla::Api* api, const char* message,
                    xla::ErrorCode code = xla::ErrorCode::internal) {
    xla::ErrorArguments arguments{sizeof(xla::ErrorArguments), nullptr, message, code};
    return api->error_create(&arguments);
}

void append_views(nb::list& views, const xla::Values& values, int access) {
    for (std::int64_t i = 0; i < values.size; ++i) {
        const auto& buffer = *static_cast<const xla::Buffer*>(values.values[i]);
        if (values.kinds[i] != xla::buffer_kind || !xla::fits(buffer))
            throw std::runtime_error("not a buffer");
        if (buffer.dtype == xla::DataType::token) continue;
        std::size_t bytes = xla::width(buffer.dtype);
        if (bytes == 0) {
            throw std::runtime_error("an array of XLA's type " +
                                     std::to_string(static_cast<int>(buffer.dtype)) +
                                     " cannot travel: convert it to another dtype");
        }
        for (std::int64_t axis = 0; axis < buffer.rank; ++axis)
            bytes *= static_cast<std::size_t>(buffer.dims[axis]);
        void* const data = buffer.data == nullptr ? &nothing : buffer.data;
        PyObject* const view =
            PyMemoryView_FromMemory(static_cast<char*>(data), static_cast<Py_ssize_t>(bytes), access);
        if (view == nullptr) throw nb::python_error();
        views.append(nb::steal(view));
    }
}

std::int64_t number_of(const xla::Attributes& attributes) {
    for (std::int64_t i = 0; i < attributes.size; ++i) {
        const xla::Text& name = *attributes.names[i];
        if (std::string_view(name.data, name.size) != "number" || attributes.kinds[i] != xla::scalar_kind)
            continue;
        const auto& scalar = *static_cast<const xla::Scalar*>(attributes.values[i]);
        if (scalar.dtype == xla::DataType::s64) return *static_cast<const std::int64_t*>(scalar.value);
    }
    throw std::runtime_error("the call has no attribute `number` of type int64");
}

// Before XLA registers the handler, it asks for which version of the interface the handler was made. This
// handler fits all minor versions, since structs only grow; but some releases of XLA accept only their own
// minor version, which Python sets here.
std::atomic<int> minor_version = 1;

bool describe(xla::Metadata& metadata) {
    if (!xla::fits(metadata)) return false;
    metadata.version.major = xla::major_version;
    metadata.version.minor = minor_version;
    metadata.traits = 0;
    return true;
}

xla::Error* run(const xla::CallFrame& frame) {
    const nb::gil_scoped_acquire gil;
    try {
        if (runner == nullptr) return failure(frame.api, "collectives: no runner is installed");
        nb::list reads;
        nb::list writes;
        append_views(reads, frame.operands, PyBUF_READ);
        append_views(writes, frame.results, PyBUF_WRITE);
        const nb::object wrong = nb::handle(runner)(number_of(frame.attributes), reads, writes);
        return wrong.is_none() ? nullptr : failure(frame.api, nb::str(wrong).c_str());
    } catch (const std::exception& error) {  // also errors of Python
        return failure(frame.api, error.what());
    }
}

// Returns null if there was no error. XLA's other stages have nothing to do.
xla::Error* handler(xla::CallFrame* frame) {
    for (xla::Extension* found = frame->extensions; found != nullptr; found = found->next) {
        if (found->type != xla::metadata_extension) continue;
        xla::Metadata& metadata = *reinterpret_cast<xla::MetadataExtension*>(found)->metadata;
        if (!describe(metadata)) metadata.version.major = -1;  // a version that no XLA accepts
        return nullptr;
    }
    if (frame->stage != xla::Stage::execute) return nullptr;
    if (!xla::fits(*frame) || !xla::fits(frame->operands) || !xla::fits(frame->results) ||
        !xla::fits(frame->attributes)) {
        return failure(frame->api, "collectives: XLA's call has another form than native/_xla was built for",
                       xla::ErrorCode::failed_precondition);
    }
    return run(*frame);
}

}  // namespace

NB_MODULE(_xla, module) {
    module.attr("handler") = nb::capsule(reinterpret_cast<void*>(handler));
    module.def("declare", [](int minor) { minor_version = minor; }, nb::arg("minor"));
    module.def(
        "install",
        [](nb::object run) {
            PyObject* const former = runner;
            runner = run.release().ptr();
            Py_XDECREF(former);
        },
        nb::arg("run"));
}
