// Collectives of the stand-in for NCCL.
#include <algorithm>
#include <cstring>

#include "comm.hpp"

using namespace stand_in;

namespace {

// Each rank shows what it gives, piece by piece; `take` is called with the pieces of all.
using Take =
    std::function<void(std::size_t offset, std::size_t bytes, const std::vector<const char*>& pieces)>;

void all_to_see(Comm* comm, const char* mine, std::size_t bytes, const Take& take) {
    for (std::size_t at = 0; at < bytes; at += slot_bytes) {
        const std::size_t now = std::min(slot_bytes, bytes - at);
        if (mine != nullptr) std::memcpy(comm->shared->slots[comm->rank], mine + at, now);
        if (!comm->barrier()) return;
        std::vector<const char*> pieces;
        for (int r = 0; r < comm->size; ++r) pieces.push_back(comm->shared->slots[r]);
        take(at, now, pieces);
        if (!comm->barrier()) return;
    }
}

}  // namespace

EXPORT int ncclReduce(const void* in, void* out, std::size_t count, int type, int op, int root, Comm* comm,
                      void* stream) {
    const std::size_t bytes = count * size_of(type);
    const bool takes = root < 0 || root == comm->rank;
    if (size_of(type) == 0 || type == 6) return fail(4, "invalid type " + std::to_string(type));
    int result = check(in, bytes, "sendbuff");
    if (result == 0 && takes) result = check(out, bytes, "recvbuff");
    if (result != 0) return result;
    return run_call(comm, stream, [=](void* in_stream) {
        return enqueue(comm, in_stream, [=] {
            all_to_see(comm, static_cast<const char*>(in), bytes, [&](auto at, auto now, const auto& pieces) {
                if (takes) reduce_type(type, pieces, static_cast<char*>(out) + at, now, op);
            });
        });
    });
}
EXPORT int ncclAllReduce(const void* in, void* out, std::size_t count, int type, int op, Comm* comm,
                         void* stream) {
    return ncclReduce(in, out, count, type, op, -1, comm, stream);
}
EXPORT int ncclReduceScatter(const void* in, void* out, std::size_t count, int type, int op, Comm* comm,
                             void* stream) {
    const std::size_t part = count * size_of(type);
    const std::size_t all = part * static_cast<std::size_t>(comm->size);
    int result = check(in, all, "sendbuff");
    if (result == 0) result = check(out, part, "recvbuff");
    if (result != 0) return result;
    return run_call(comm, stream, [=](void* in_stream) {
        return enqueue(comm, in_stream, [=] {
            std::vector<char> whole(all);
            all_to_see(comm, static_cast<const char*>(in), all, [&](auto at, auto now, const auto& pieces) {
                reduce_type(type, pieces, whole.data() + at, now, op);
            });
            std::memcpy(out, whole.data() + part * static_cast<std::size_t>(comm->rank), part);
        });
    });
}
EXPORT int ncclBroadcast(const void* in, void* out, std::size_t count, int type, int root, Comm* comm,
                         void* stream) {
    const std::size_t bytes = count * size_of(type);
    const bool gives = root == comm->rank;
    int result = gives ? check(in, bytes, "sendbuff") : 0;
    if (result == 0) result = check(out, bytes, "recvbuff");
    if (result != 0) return result;
    return run_call(comm, stream, [=](void* in_stream) {
        return enqueue(comm, in_stream, [=] {
            all_to_see(comm, gives ? static_cast<const char*>(in) : nullptr, bytes,
                       [&](auto at, auto now, const auto& pieces) {
                           std::memmove(static_cast<char*>(out) + at, pieces[static_cast<std::size_t>(root)],
                                        now);
                       });
        });
    });
}
EXPORT int ncclAllGather(const void* in, void* out, std::size_t count, int type, Comm* comm, void* stream) {
    const std::size_t bytes = count * size_of(type);
    int result = check(in, bytes, "sendbuff");
    if (result == 0) result = check(out, bytes * static_cast<std::size_t>(comm->size), "recvbuff");
    if (result != 0) return result;
    return run_call(comm, stream, [=](void* in_stream) {
        return enqueue(comm, in_stream, [=] {
            all_to_see(comm, static_cast<const char*>(in), bytes, [&](auto at, auto now, const auto& pieces) {
                for (std::size_t r = 0; r < pieces.size(); ++r) {
                    std::memcpy(static_cast<char*>(out) + r * bytes + at, pieces[r], now);
                }
            });
        });
    });
}

#ifndef STAND_IN_OLD
EXPORT int ncclAlltoAll(const void* in, void* out, std::size_t count, int type, Comm* comm, void* stream) {
    const std::size_t part = count * size_of(type);
    const std::size_t all = part * static_cast<std::size_t>(comm->size);
    int result = check(in, all, "sendbuff");
    if (result == 0) result = check(out, all, "recvbuff");
    if (result != 0) return result;
    return run_call(comm, stream, [=](void* in_stream) {
        return enqueue(comm, in_stream, [=] {
            std::vector<char> whole(all * static_cast<std::size_t>(comm->size));
            all_to_see(comm, static_cast<const char*>(in), all, [&](auto at, auto now, const auto& pieces) {
                for (std::size_t r = 0; r < pieces.size(); ++r) {
                    std::memcpy(whole.data() + r * all + at, pieces[r], now);
                }
            });
            for (std::size_t r = 0; r < static_cast<std::size_t>(comm->size); ++r) {
                const std::size_t mine = part * static_cast<std::size_t>(comm->rank);
                std::memcpy(static_cast<char*>(out) + r * part, whole.data() + r * all + mine, part);
            }
        });
    });
}
#endif
