#include "cuda/registered.hpp"

#include "base/error.hpp"
#include "cuda/driver.hpp"
#include "cuda/stream.hpp"

namespace collectives::cuda {

RegisteredMemory::RegisteredMemory(std::shared_ptr<const PrimaryContext> context, void* data,
                                   std::size_t bytes)
    : context_(std::move(context)), data_(data) {
    const Api& api = driver();
    const Current current(*context_);
    const RelaxedCapture relaxed;
    check(api.host_register(data, bytes, register_portable | register_device_map), "cuMemHostRegister",
          context_->device());
    const Result result = api.host_get_device_pointer(&on_device_, data, 0);
    if (result != success) {
        api.host_unregister(data);
        throw_failure(result, "cuMemHostGetDevicePointer", context_->device());
    }
}

RegisteredMemory::~RegisteredMemory() {
    try {
        const Current current(*context_);
        const RelaxedCapture relaxed;
        driver().host_unregister(data_);
    } catch (const Error&) {
        return;  // the context is lost, and its registrations with it
    }
}

}  // namespace collectives::cuda
