// What XLA calls to run a collective inside a compiled JAX function, in an extension module of its own.
//
// Invariant: nothing is copied. XLA owns the buffers, so Python may use their views during the call alone;
// the GIL is held only while Python runs, and no exception leaves.
#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace nb = nanobind;
namespace ffi = xla::ffi;

namespace {

// Runs call `number` on these views; returns None, or what went wrong as text. Never destroyed: XLA's threads
// may outlive the interpreter's orderly end.
PyObject* runner = nullptr;

// Empty ones may come without an address, which a memoryview has to have.
char nothing = 0;

void append_view(nb::list& views, const ffi::AnyBuffer& buffer, int access) {
    if (buffer.element_type() == ffi::TOKEN) return;
    void* const data = buffer.untyped_data() == nullptr ? &nothing : buffer.untyped_data();
    PyObject* const view = PyMemoryView_FromMemory(static_cast<char*>(data),
                                                   static_cast<Py_ssize_t>(buffer.size_bytes()), access);
    if (view == nullptr) throw nb::python_error();
    views.append(nb::steal(view));
}

ffi::Error run(ffi::RemainingArgs arguments, ffi::RemainingRets results, std::int64_t number) {
    const nb::gil_scoped_acquire gil;
    try {
        if (runner == nullptr) return ffi::Error::Internal("collectives: no runner is installed");
        nb::list reads;
        nb::list writes;
        for (std::size_t i = 0; i < arguments.size(); ++i) {
            append_view(reads, arguments.get<ffi::AnyBuffer>(i).value(), PyBUF_READ);
        }
        for (std::size_t i = 0; i < results.size(); ++i) {
            append_view(writes, *results.get<ffi::AnyBuffer>(i).value(), PyBUF_WRITE);
        }
        const nb::object wrong = nb::handle(runner)(number, reads, writes);
        if (wrong.is_none()) return ffi::Error::Success();
        return ffi::Error::Internal(nb::str(wrong).c_str());
    } catch (const std::exception& error) {  // Python's too
        return ffi::Error::Internal(error.what());
    }
}

XLA_FFI_DEFINE_HANDLER(handler, run,
                       ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<std::int64_t>("number"));

}  // namespace

NB_MODULE(_xla, module) {
    module.attr("handler") = nb::capsule(reinterpret_cast<void*>(handler));
    module.def(
        "install",
        [](nb::object run) {
            PyObject* const former = runner;
            runner = run.release().ptr();
            Py_XDECREF(former);
        },
        nb::arg("run"));
}
