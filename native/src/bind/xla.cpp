// The handlers that XLA calls to run a collective inside a compiled JAX function, in a module of its own: one
// for buffers in host memory, one for buffers on CUDA devices, which are used in the order of XLA's stream.
//
// Invariant: nothing is copied. XLA owns the buffers, so Python may use them only during the call, and those
// on devices also in XLA's stream. The GIL is held only while Python code runs, and no exception leaves a
// handler.
#include <nanobind/nanobind.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "bind/xla_ffi.hpp"

namespace nb = nanobind;
namespace xla = collectives::xla;

namespace {

// The Python functions that run call `number` on views of the buffers, and on addresses on a device; they
// return None, or an error text. Never destroyed, because XLA's threads may outlive the interpreter.
PyObject* runner = nullptr;
PyObject* runner_on_device = nullptr;

// The address for empty buffers, which XLA may pass without one; a memoryview needs an address.
char nothing = 0;

xla::Error* failure(const xla::Api* api, const char* message,
                    xla::ErrorCode code = xla::ErrorCode::internal) {
    xla::ErrorArguments arguments{sizeof(xla::ErrorArguments), nullptr, message, code};
    return api->error_create(&arguments);
}

// Calls `append` with the address and the number of bytes of each buffer, tokens left out.
template <typename Append>
void each_buffer(const xla::Values& values, const Append& append) {
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
        append(buffer.data, bytes);
    }
}

nb::list views_of(const xla::Values& values, int access) {
    nb::list views;
    each_buffer(values, [&](void* given, std::size_t bytes) {
        char* const data = given == nullptr ? &nothing : static_cast<char*>(given);
        PyObject* const view = PyMemoryView_FromMemory(data, static_cast<Py_ssize_t>(bytes), access);
        if (view == nullptr) throw nb::python_error();
        views.append(nb::steal(view));
    });
    return views;
}

nb::list addresses_of(const xla::Values& values) {
    nb::list addresses;
    each_buffer(values, [&](void* data, std::size_t) {
        addresses.append(nb::int_(reinterpret_cast<std::uintptr_t>(data)));
    });
    return addresses;
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
        const nb::list reads = views_of(frame.operands, PyBUF_READ);
        const nb::list writes = views_of(frame.results, PyBUF_WRITE);
        const nb::object wrong = nb::handle(runner)(number_of(frame.attributes), reads, writes);
        return wrong.is_none() ? nullptr : failure(frame.api, nb::str(wrong).c_str());
    } catch (const std::exception& error) {  // also errors of Python
        return failure(frame.api, error.what());
    }
}

xla::Error* run_on_device(const xla::CallFrame& frame) {
    xla::StreamArguments arguments{sizeof(xla::StreamArguments), nullptr, frame.context, nullptr};
    if (!xla::fits(*frame.api)) return failure(frame.api, "collectives: XLA's interface has no streams");
    if (xla::Error* const error = frame.api->stream_get(&arguments)) return error;
    const nb::gil_scoped_acquire gil;
    try {
        if (runner_on_device == nullptr) return failure(frame.api, "collectives: no runner is installed");
        const nb::object wrong = nb::handle(runner_on_device)(
            number_of(frame.attributes), addresses_of(frame.operands), addresses_of(frame.results),
            reinterpret_cast<std::uintptr_t>(arguments.stream));
        return wrong.is_none() ? nullptr : failure(frame.api, nb::str(wrong).c_str());
    } catch (const std::exception& error) {
        return failure(frame.api, error.what());
    }
}

// Returns null if there was no error. XLA's other stages have nothing to do.
xla::Error* handle(xla::CallFrame* frame, xla::Error* (*execute)(const xla::CallFrame&)) {
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
    return execute(*frame);
}

xla::Error* handler(xla::CallFrame* frame) { return handle(frame, &run); }
xla::Error* cuda_handler(xla::CallFrame* frame) { return handle(frame, &run_on_device); }

void install(PyObject*& place, nb::object run) {
    PyObject* const former = place;
    place = run.release().ptr();
    Py_XDECREF(former);
}

}  // namespace

NB_MODULE(_xla, module) {
    module.attr("handler") = nb::capsule(reinterpret_cast<void*>(handler));
    module.attr("cuda_handler") = nb::capsule(reinterpret_cast<void*>(cuda_handler));
    module.def("declare", [](int minor) { minor_version = minor; }, nb::arg("minor"));
    module.def("install", [](nb::object run) { install(runner, std::move(run)); }, nb::arg("run"));
    module.def(
        "install_on_device", [](nb::object run) { install(runner_on_device, std::move(run)); },
        nb::arg("run"));
}
