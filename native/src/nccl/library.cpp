#include "nccl/library.hpp"

#include <cstdlib>
#include <memory>
#include <mutex>

#include "base/error.hpp"
#include "base/shared_object.hpp"
#include "cuda/driver.hpp"

namespace collectives::nccl {

namespace {

constexpr const char* name_of_all = "libnccl.so";

std::string real_path(const std::string& path) {
    const std::unique_ptr<char, decltype(&std::free)> found(::realpath(path.c_str(), nullptr), &std::free);
    return found == nullptr ? path : found.get();
}

// `said`: NCCL's own words about the failure.
const char* cure_for(Result result, const std::string& said) {
    if (said.find("out of memory") != std::string::npos) return cuda::cure_for_full_memory;
    switch (result) {
        case unhandled_cuda_error:
            return "set NCCL_DEBUG=WARN to see which call of CUDA failed";
        case system_error:
            return "set NCCL_DEBUG=WARN; in a container, /dev/shm may be too small, or NCCL_SOCKET_IFNAME "
                   "may name an interface that is not there";
        case invalid_usage:
            return "ranks may use the same device, which NCCL refuses unless NCCL_MULTI_RANK_GPU_ENABLE=1 "
                   "(2.32 and later)";
        case remote_error:
            return "another rank has failed, or the network between them";
        default:
            return "set NCCL_DEBUG=WARN to see why";
    }
}

}  // namespace

std::string version_text(int version) {
    return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
           std::to_string(version % 100);
}

std::string loaded_file() {
    int count = 0;
    std::string path = SharedObject::loaded(name_of_all, &count);
    if (count > 1) {
        throw Error(ErrorKind::config_mismatch,
                    "this process has loaded " + std::to_string(count) + " different libnccl, among them " +
                        path + ": import one library that brings NCCL, or let all use the same version");
    }
    return path;
}

const Library& Library::load(const std::string& path) {
    static std::mutex mutex;
    static std::unique_ptr<const Library> one;
    const std::lock_guard lock(mutex);
    const std::string wanted = real_path(path);
    if (one == nullptr || one->path_ != wanted) {
        const std::string other = one != nullptr ? one->path_ : loaded_file();
        if (!other.empty() && real_path(other) != wanted) {
            throw Error(ErrorKind::config_mismatch, "NCCL is to be " + wanted +
                                                        ", but this process has loaded " + other +
                                                        ": two of them in one process may call each other's "
                                                        "functions. Unset COLLECTIVES_NCCL, or let it name "
                                                        "the loaded one");
        }
        one.reset(new Library(wanted));
    }
    return *one;
}

Library::Library(const std::string& path) : path_(path) {
    std::string why;
    const SharedObject object = SharedObject::open(path, why);
    if (!object) throw Error(ErrorKind::transport_unavailable, "NCCL cannot be loaded: " + why);
    const auto refuse = [&](const std::string& text) {
        throw Error(ErrorKind::transport_unavailable,
                    path + " " + text +
                        "; install nvidia-nccl-cu12 or -cu13 for your driver, or name another file in "
                        "COLLECTIVES_NCCL");
    };
    api_.get_version = reinterpret_cast<decltype(api_.get_version)>(object.symbol("ncclGetVersion"));
    if (api_.get_version == nullptr) refuse("is no libnccl: it lacks ncclGetVersion");
    if (api_.get_version(&version_) != success) refuse("does not tell its version");
    if (version_ < oldest_version) {
        refuse("is NCCL " + version_text(version_) + ", older than " + version_text(oldest_version));
    }
    std::string missing;
    const auto resolve = [&](auto& member, const char* symbol, bool needed) {
        member = reinterpret_cast<std::remove_reference_t<decltype(member)>>(object.symbol(symbol));
        if (member == nullptr && needed) missing += std::string(missing.empty() ? "" : ", ") + symbol;
        return member != nullptr;
    };
    resolve(api_.get_error_string, "ncclGetErrorString", true);
    resolve(api_.get_last_error, "ncclGetLastError", true);
#define COLLECTIVES_NCCL_RESOLVE(member, symbol, parameters) resolve(api_.member, #symbol, true);
    COLLECTIVES_NCCL_FUNCTIONS(COLLECTIVES_NCCL_RESOLVE)
#undef COLLECTIVES_NCCL_RESOLVE
#define COLLECTIVES_NCCL_RESOLVE(member, symbol, parameters) \
    if (resolve(api_.member, #symbol, false)) features_.push_back(#symbol);
    COLLECTIVES_NCCL_FEATURES(COLLECTIVES_NCCL_RESOLVE)
#undef COLLECTIVES_NCCL_RESOLVE
    if (!missing.empty()) refuse("says that it is NCCL " + version_text(version_) + ", but lacks " + missing);
}

void Library::throw_failure(Result result, const char* function, Handle communicator, int device) const {
    const std::string where = device < 0 ? "" : " on device " + std::to_string(device);
    std::string text = std::string(function) + " failed" + where + ": " + api_.get_error_string(result) +
                       " (" + std::to_string(result) + ")";
    // It describes the last failure, so it is read only after one.
    const char* const last = api_.get_last_error(communicator);
    if (last != nullptr && *last != '\0') text += ", " + std::string(last);
    while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
    throw Error(ErrorKind::aborted, text + "; " + cure_for(result, text) + " (NCCL " +
                                        version_text(version_) + ", " + path_ + ")");
}

}  // namespace collectives::nccl
