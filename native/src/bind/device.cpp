// CUDA devices, what the driver knows about an address, and the NCCL of this process.
#include "cuda/device.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bind/common.hpp"
#include "cuda/driver.hpp"
#include "cuda/stream.hpp"
#include "nccl/collective.hpp"
#include "nccl/library.hpp"

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
    cuda::check_stream(reinterpret_cast<cuda::StreamHandle>(stream), *context);
}

nb::bytes unique_id(const nccl::Library& library) {
    nccl::UniqueId id{};
    {
        const nb::gil_scoped_release nogil;  // the first call reads the machine's topology
        library.check(library.api().get_unique_id(&id), "ncclGetUniqueId");
    }
    return nb::bytes(id.internal, sizeof(id.internal));
}

std::optional<std::string> why_nccl_does_not_reduce(unsigned dtype, unsigned op) {
    if (!is_dtype(dtype) || !is_op(op)) throw nb::value_error("an unknown dtype or op");
    nccl::Elements elements;
    const char* const why = nccl::why_not_reduced(static_cast<DType>(dtype), static_cast<Op>(op), elements);
    return why == nullptr ? std::nullopt : std::optional<std::string>(why);
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

    nb::class_<nccl::Library>(module, "NcclLibrary")
        .def_prop_ro("path", &nccl::Library::path)
        .def_prop_ro("version", &nccl::Library::version)
        .def_prop_ro("features", &nccl::Library::features)
        .def("unique_id", &unique_id);
    module.def("loaded_nccl", &nccl::loaded_file);
    module.def(
        "load_nccl",
        [](const std::string& path) {
            const nb::gil_scoped_release nogil;  // it is a large file
            return &nccl::Library::load(path);
        },
        "path"_a, nb::rv_policy::reference);
    module.def("why_nccl_does_not_reduce", &why_nccl_does_not_reduce, "dtype"_a, "op"_a);
}

}  // namespace collectives
