#include "cuda/driver.hpp"

#include "base/error.hpp"
#include "base/shared_object.hpp"

namespace collectives::cuda {

namespace {

constexpr const char* library = "libcuda.so.1";

using Init = Result (*)(unsigned);
using GetVersion = Result (*)(int*);
using GetProcAddress = Result (*)(const char*, void**, int, std::uint64_t, int*);

// What is found out without initialising the driver.
struct Found {
    std::string why_not;
    std::string file;
    int version = 0;
    Init init = nullptr;
    Api api;
};

Found find() {
    Found found;
    std::string why;
    const SharedObject object = SharedObject::open(library, why);
    if (!object) {
        found.why_not = "there is no NVIDIA driver here (" + why +
                        "); install one, or, in a container, start it with the devices "
                        "(docker run --gpus all)";
        return found;
    }
    found.init = reinterpret_cast<Init>(object.symbol("cuInit"));
    const auto version = reinterpret_cast<GetVersion>(object.symbol("cuDriverGetVersion"));
    const auto address = reinterpret_cast<GetProcAddress>(object.symbol("cuGetProcAddress_v2"));
    found.file = SharedObject::file_of(object.symbol("cuInit"));
    if (version != nullptr) version(&found.version);
    if (found.init == nullptr || address == nullptr || found.version < oldest_driver) {
        found.why_not = "the NVIDIA driver (" + found.file + ") supports CUDA up to " +
                        version_text(found.version) + ", but " + version_text(oldest_driver) +
                        " is needed: install a newer driver";
        return found;
    }
#define COLLECTIVES_CUDA_RESOLVE(member, symbol, since, parameters)                                          \
    if (void* entry = nullptr; address(#symbol, &entry, since, 0, nullptr) == success && entry != nullptr) { \
        found.api.member = reinterpret_cast<Result(*) parameters>(entry);                                    \
    } else {                                                                                                 \
        found.why_not += std::string(found.why_not.empty() ? "" : ", ") + #symbol;                           \
    }
    COLLECTIVES_CUDA_FUNCTIONS(COLLECTIVES_CUDA_RESOLVE)
#undef COLLECTIVES_CUDA_RESOLVE
    if (!found.why_not.empty()) {
        found.why_not = "the NVIDIA driver (" + found.file + ", CUDA " + version_text(found.version) +
                        ") lacks " + found.why_not + ": install a newer driver";
    }
    return found;
}

const Found& found() {
    static const Found once = find();
    return once;
}

const char* cure_for(Result result) {
    switch (result) {
        case error_no_device:
            return "no device is visible: see nvidia-smi and CUDA_VISIBLE_DEVICES";
        case error_invalid_device:
            return "there is no such device: see nvidia-smi and CUDA_VISIBLE_DEVICES";
        case error_out_of_memory:
            return cure_for_full_memory;
        case error_not_initialized:
            return "this process was forked from one that uses CUDA: start it by another method (spawn)";
        case error_invalid_handle:
        case error_context_is_destroyed:
            return "the stream does not exist any more: pass one that is in use";
        case error_invalid_context:
            return "the device was reset: start the process again";
        case error_devices_unavailable:
            return "another process has the device for itself, or MPS restarts: try again in a second";
        case error_illegal_address:
            return "a kernel has used an invalid address, which makes the device unusable for this process: "
                   "start it again (compute-sanitizer finds the kernel)";
        case error_system_not_ready:
            return "the system is not ready: see that nvidia-fabricmanager runs";
        case error_system_driver_mismatch:
            return "the driver's library and its kernel module have different versions: restart the machine";
        default:
            return nullptr;
    }
}

}  // namespace

std::string version_text(int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

const std::string& why_no_driver() { return found().why_not; }

int driver_version() { return found().version; }

const std::string& driver_file() { return found().file; }

const Api& driver() {
    const Found& one = found();
    if (!one.why_not.empty()) throw Error(ErrorKind::transport_unavailable, one.why_not);
    // Only a successful initialisation is remembered: a device may appear later.
    static const bool initialised = [&] {
        check(one.init(0), "cuInit");
        return true;
    }();
    static_cast<void>(initialised);
    return one.api;
}

void throw_failure(Result result, const char* function, int device) {
    const Api& api = found().api;
    const char* name = nullptr;
    const char* text = nullptr;
    if (api.get_error_name != nullptr) api.get_error_name(result, &name);
    if (api.get_error_string != nullptr) api.get_error_string(result, &text);
    std::string message = std::string(function) + " failed";
    if (device >= 0) message += " on device " + std::to_string(device);
    message +=
        ": " + std::string(name == nullptr ? "CUDA error" : name) + " (" + std::to_string(result) + ")";
    if (text != nullptr) message += ", " + std::string(text);
    if (const char* const cure = cure_for(result)) message += "; " + std::string(cure);
    throw Error(ErrorKind::transport_unavailable, message);
}

}  // namespace collectives::cuda
