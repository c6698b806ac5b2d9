// Communicators of the stand-in for NCCL: made, split, aborted and destroyed.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

#include "comm.hpp"

using namespace stand_in;

namespace {

// Runs `body`, which gives the state that the communicator has afterwards: in this thread, or, if its calls
// do not block, in another one.
int start(Comm* comm, const std::function<int()>& body) {
    if (comm->starting.joinable()) comm->starting.join();
    comm->state = 7;
    if (comm->blocking) {
        comm->state = body();
        return comm->state;
    }
    comm->starting = std::thread([comm, body] { comm->state = body(); });
    return 7;
}

Comm* make(int rank, int size, const Config& config, std::string file) {
    auto* const comm = new Comm;
    comm->rank = rank;
    comm->size = size;
    comm->blocking = config.blocking != 0;
    comm->blocks = config.max_ctas > 0 ? config.max_ctas : 64;
    comm->file = std::move(file);
    return comm;
}

}  // namespace

EXPORT int ncclGetVersion(int* version) {
    *version = STAND_IN_VERSION;
    return 0;
}
EXPORT const char* ncclGetErrorString(int code) {
    constexpr const char* texts[] = {"no error",
                                     "unhandled cuda error",
                                     "unhandled system error",
                                     "internal error",
                                     "invalid argument",
                                     "invalid usage",
                                     "remote process exited or there was a network error",
                                     "NCCL operation in progress"};
    return code < 0 || code > 7 ? "unknown result code" : texts[code];
}
EXPORT const char* ncclGetLastError(Comm*) { return last_error(); }
EXPORT int ncclGetUniqueId(UniqueId* id) {
    const char* const folder = std::getenv("STAND_IN_FOLDER");
    if (folder == nullptr) return fail(2, "STAND_IN_FOLDER is not set");
    std::random_device random;
    std::memset(id->internal, 0, sizeof(id->internal));
    std::snprintf(id->internal, sizeof(id->internal), "%s/nccl-%08x%08x", folder, random(), random());
    return 0;
}
EXPORT int ncclCommGetAsyncError(Comm* comm, int* state) {
    *state = comm->state;
    return 0;
}
EXPORT int ncclCommInitRankConfig(Comm** made, int size, UniqueId id, int rank, Config* config) {
    if (config->magic != 0xcafebeef) return fail(4, "ncclConfig_t argument not initialized");
    if (size > most_ranks) return fail(4, "too many ranks for the stand-in");
    if (stand_in_unsafe_in_capture() != 0) return fail(1, "operation not permitted when stream is capturing");
    if (std::getenv("STAND_IN_NCCL_FULL") != nullptr) return fail(1, "Cuda failure 2 'out of memory'");
    Comm* const comm = make(rank, size, *config, id.internal);
    *made = comm;
    return start(comm, [comm, device = stand_in_device()] {
        if (!comm->open()) return 2;
        comm->shared->devices[comm->rank] = device + 1;
        if (!comm->barrier()) return 3;
        const char* const allowed = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
        const bool may_share = allowed != nullptr && std::strcmp(allowed, "1") == 0;
        for (int r = 0; r < comm->size; ++r) {
            const bool same = r != comm->rank && comm->shared->devices[r] == device + 1;
            if (same && !may_share) return 5;
        }
        return 0;
    });
}
EXPORT int ncclCommInitRank(Comm** made, int size, UniqueId id, int rank) {
    constexpr int unset = std::numeric_limits<int>::min();
    Config config{sizeof(Config), 0xcafebeef, 22800, unset, unset, unset, unset};
    return ncclCommInitRankConfig(made, size, id, rank, &config);
}
EXPORT int ncclCommSplit(Comm* comm, int, int key, Comm** made, Config* config) {
    if (comm->state == 7) return fail(4, "Attempt to use communicator before it was ready");
    *made = nullptr;
    Comm* const child = make(key, comm->size, *config, comm->file + "-" + std::to_string(++comm->splits));
    return start(comm, [comm, child, made] {
        if (!comm->barrier() || !child->open()) {
            delete child;
            return 3;
        }
        *made = child;
        return 0;
    });
}
EXPORT int ncclCommAbort(Comm* comm) {
    if (comm == nullptr) return 0;
    comm->abort = true;
    while (comm->running > 0 || comm->graphs > 0) Comm::nap();
    comm->release();
    return 0;
}
EXPORT int ncclCommDestroy(Comm* comm) {
    while (comm->running > 0 || comm->graphs > 0) Comm::nap();
    comm->release();
    return 0;
}

#ifndef STAND_IN_OLD
// Memory in windows is as any other here.
EXPORT int ncclMemAlloc(void** memory, std::size_t bytes) {
    std::uint64_t address = 0;
    if (stand_in_allocate(&address, bytes, 1) != 0) return fail(1, "out of memory");
    *memory = reinterpret_cast<void*>(address);
    return 0;
}
EXPORT int ncclCommWindowRegister(Comm* comm, void* memory, std::size_t bytes, void** window, int flags) {
    if (flags != 1) return fail(4, "the stand-in knows symmetric windows only");
    if (const int wrong = check(memory, bytes, "buff"); wrong != 0) return wrong;
    *window = memory;
    return comm->barrier() ? 0 : 3;
}
EXPORT int ncclCommRevoke(Comm* comm, int) {
    comm->revoked = true;
    comm->abort = true;
    return 0;
}
// One MiB for each block.
EXPORT int ncclCommMemStats(Comm* comm, int what, std::uint64_t* value) {
    if (what != 3) return fail(4, "the stand-in knows the total only");
    *value = static_cast<std::uint64_t>(comm->blocks) << 20;
    return 0;
}
#endif
