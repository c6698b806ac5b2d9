// CUDA devices, streams, and what the driver knows about an address.
#include "cuda/device.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "bind/stream_ticket.hpp"
#include "cuda/driver.hpp"
#include "cuda/memory.hpp"
#include "cuda/signal.hpp"
#include "cuda/stream.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace collectives {

namespace {

std::optional<std::string> why_no_cuda() {
    const std::string& why = cuda::why_no_driver();
    return why.empty() ? std::nullopt : std::optional(why);
}

std::vector<cuda::Device> cuda_devices() {
    const nb::gil_scoped_release nogil;  // the first call initialises the driver
    return cuda::devices();
}

std::pair<std::string, int> cuda_memory(std::uint64_t address) {
    const cuda::Place place = cuda::place_of(address);
    switch (place.type) {
        case cuda::MemoryType::device:
        case cuda::MemoryType::unified:
        case cuda::MemoryType::array:
            return {"cuda", place.device};
        case cuda::MemoryType::host:
            return {place.is_managed ? "cuda" : "host", place.device};
        case cuda::MemoryType::unknown:
            break;
    }
    return {"host", -1};
}

void check_cuda_stream(std::uint64_t stream, int device) {
    const auto context = cuda::PrimaryContext::of(device);
    const cuda::Current current(*context);
    const cuda::StreamHandle handle = stream_of(stream);
    cuda::check_stream(handle, *context);
    cuda::refuse_capture(
        handle, *context,
        "in which NCCL's communicator cannot be made: call comm.prepare() before the capture");
}

bool is_capturing(std::uint64_t stream, int device) {
    const auto context = cuda::PrimaryContext::of(device);
    const cuda::Current current(*context);
    const cuda::StreamHandle handle = stream_of(stream);
    cuda::check_stream(handle, *context);
    return cuda::is_capturing(handle, *context);
}

// A copy between a NumPy array and memory of a device, after what is in the stream; returns when it is over.
void copy_cuda(nb::handle array, std::uint64_t address, std::size_t bytes, int device, std::uint64_t stream,
               bool to_host) {
    if (bytes == 0) return;
    std::byte* const host = memory(array, bytes, 1, "memory");
    const nb::gil_scoped_release nogil;
    const auto context = cuda::PrimaryContext::of(device);
    const cuda::Current current(*context);
    cuda::check_on_device(address, bytes, device, "the array");
    const cuda::StreamHandle handle = stream_of(stream);
    cuda::check_stream(handle, *context);
    cuda::refuse_capture(handle, *context, "which cannot contain a copy through host memory");
    const auto at = static_cast<cuda::Pointer>(reinterpret_cast<std::uintptr_t>(host));
    cuda::Signal over = std::make_shared<cuda::Signals>(context)->take();
    cuda::copy(handle, to_host ? at : address, to_host ? address : at, bytes);
    over.set_by(handle);
    // Not even for a signal handler is it left: the copy uses the memory.
    while (!over.is_set()) std::this_thread::sleep_for(std::chrono::microseconds(20));
}

// The device of the calling thread's context; nothing if it has none.
std::optional<int> current_device() {
    cuda::DeviceNumber number = 0;
    if (cuda::driver().context_get_device(&number) != cuda::success) return std::nullopt;
    return number;
}

}  // namespace

void add_devices(nb::module_& module) {
    module.def("why_no_cuda", &why_no_cuda);
    module.def("cuda_driver", [] { return std::pair(cuda::driver_file(), cuda::driver_version()); });
    nb::class_<cuda::Device>(module, "CudaDevice")
        .def_ro("number", &cuda::Device::number)
        .def_ro("name", &cuda::Device::name)
        .def_ro("uuid", &cuda::Device::uuid)
        .def_ro("multiprocessors", &cuda::Device::multiprocessors)
        .def_ro("capability", &cuda::Device::capability);
    module.def("cuda_devices", &cuda_devices);
    module.def("cuda_memory", &cuda_memory, "address"_a);

    module.def("check_cuda_stream", &check_cuda_stream, "stream"_a, "device"_a);
    module.def("is_capturing", &is_capturing, "stream"_a, "device"_a);
    module.def("current_cuda_device", &current_device);
    module.def("copy_cuda", &copy_cuda, "memory"_a, "address"_a, "nbytes"_a, "device"_a, "stream"_a,
               "to_host"_a);
}

}  // namespace collectives
