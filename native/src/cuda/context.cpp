#include "cuda/context.hpp"

#include <map>
#include <mutex>

#include "cuda/device.hpp"
#include "cuda/driver.hpp"
#include "cuda/stream.hpp"

namespace collectives::cuda {

std::shared_ptr<const PrimaryContext> PrimaryContext::of(int device) {
    static std::mutex mutex;
    static std::map<int, std::weak_ptr<const PrimaryContext>> known;
    const std::lock_guard lock(mutex);
    std::shared_ptr<const PrimaryContext> found = known[device].lock();
    if (!found) {
        found.reset(new PrimaryContext(cuda::device(device).number));
        known[device] = found;
    }
    return found;
}

PrimaryContext::PrimaryContext(int device) : device_(device) {
    const Api& api = driver();
    check(api.device_get(&number_, device), "cuDeviceGet", device);
    check(api.primary_context_retain(&handle_, number_), "cuDevicePrimaryCtxRetain", device);
}

PrimaryContext::~PrimaryContext() { driver().primary_context_release(number_); }

Current::Current(const PrimaryContext& context) {
    check(driver().context_push(context.handle()), "cuCtxPushCurrent", context.device());
}

Current::~Current() {
    Context ours = nullptr;
    driver().context_pop(&ours);
}

void enable_peer_access(const PrimaryContext& context, const PrimaryContext& other) {
    const Current current(context);
    const RelaxedCapture relaxed;
    const Result result = driver().enable_peer_access(other.handle(), 0);
    // Another library of this process, or another communicator, may have enabled it.
    if (result != error_peer_access_already_enabled) {
        check(result, "cuCtxEnablePeerAccess", context.device());
    }
}

}  // namespace collectives::cuda
