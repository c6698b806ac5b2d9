// A stand-in for NCCL, for tests on machines without a GPU: its entry points on host memory, between
// processes and threads of one machine. It shows how this library loads, orders, aborts and frees, and
// nothing about NCCL's speed, memory, or what NCCL does when it is used wrongly in other ways than those
// below.
//
// Invariant: as in NCCL, a dead or missing rank is noticed by nobody: calls and streams wait until they are
// aborted. Aborted work that has not begun is skipped when its stream comes to it. A call on a communicator
// that is not ready gives error 4, the first call on a communicator waits for all ranks, and two ranks on one
// device are refused.
//
// STAND_IN_VERSION is the version that it claims to be; STAND_IN_OLD leaves out what only later versions
// have.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#ifndef STAND_IN_VERSION
#define STAND_IN_VERSION 23203
#endif
#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" {
int stand_in_enqueue(void* stream, void (*work)(void*), void* argument);
void* stand_in_resolve(void* stream);
int stand_in_is_device(std::uint64_t address, std::size_t bytes);
int stand_in_device();
}

namespace {

constexpr int most_ranks = 8;
constexpr std::size_t slot_bytes = 64 << 10;
constexpr std::size_t box_bytes = 8 << 10;

struct UniqueId {
    char internal[128];
};
struct Config {
    std::size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
};

// What the ranks of a communicator share: a file that all map.
struct Shared {
    std::atomic<std::uint32_t> arrived[most_ranks];  // barriers that this rank has come to
    std::atomic<int> devices[most_ranks];            // one more than the number
    struct Box {                                     // one message, from a rank to a rank
        std::atomic<std::uint32_t> length;           // one more than the bytes; 0: empty
        char data[box_bytes];
    } boxes[most_ranks][most_ranks];
    char slots[most_ranks][slot_bytes];
};

thread_local std::string last_error;

struct Comm {
    int rank = 0;
    int size = 1;
    bool blocking = true;
    std::string file;
    Shared* shared = nullptr;
    std::atomic<int> state{0};
    std::atomic<bool> abort{false};
    std::atomic<bool> revoked{false};
    std::atomic<int> uses{1};     // by its owner, and by work in streams that has not ended
    std::atomic<int> running{0};  // of this work, what has begun
    std::uint32_t barriers = 0;   // of its stream's work, or of a call: never both at once
    bool connected = false;
    int splits = 0;
    std::thread starting;

    ~Comm() {
        if (starting.joinable()) starting.join();
        if (shared != nullptr) ::munmap(shared, sizeof(Shared));
        if (rank == 0 && !file.empty()) ::unlink(file.c_str());
    }
    bool open() {
        const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0 || ::ftruncate(fd, sizeof(Shared)) != 0) return false;
        void* const data = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        ::close(fd);
        if (data == MAP_FAILED) return false;
        shared = static_cast<Shared*>(data);
        return true;
    }
    static void nap() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }
    // False if it was aborted.
    bool barrier() {
        const std::uint32_t mine = ++barriers;
        shared->arrived[rank].store(mine);
        for (int r = 0; r < size; ++r) {
            while (static_cast<std::int32_t>(shared->arrived[r].load() - mine) < 0) {
                if (abort) return false;
                nap();
            }
        }
        return true;
    }
};

int fail(int code, const std::string& text) {
    last_error = text;
    return code;
}

// --- elements

float from_bfloat(std::uint16_t bits) {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}
std::uint16_t to_bfloat(float value) {
    std::uint32_t wide;
    std::memcpy(&wide, &value, 4);
    wide += 0x7fff + ((wide >> 16) & 1);
    return static_cast<std::uint16_t>(wide >> 16);
}

template <typename T>
T apply(T a, T b, int op) {
    switch (op) {
        case 1:
            return static_cast<T>(a * b);
        case 2:
            return std::max(a, b);
        case 3:
            return std::min(a, b);
        default:
            return static_cast<T>(a + b);
    }
}

template <typename T>
void reduce(const std::vector<const char*>& from, char* to, std::size_t bytes, int op) {
    for (std::size_t i = 0; i < bytes / sizeof(T); ++i) {
        const auto at = [&](std::size_t r) {
            T value;
            std::memcpy(&value, from[r] + i * sizeof(T), sizeof(T));
            return value;
        };
        T sum = at(0);
        for (std::size_t r = 1; r < from.size(); ++r) sum = apply(sum, at(r), op);
        if (op == 4) sum = static_cast<T>(sum / static_cast<T>(from.size()));
        std::memcpy(to + i * sizeof(T), &sum, sizeof(T));
    }
}

void reduce_bfloat(const std::vector<const char*>& from, char* to, std::size_t bytes, int op) {
    for (std::size_t i = 0; i < bytes / 2; ++i) {
        const auto at = [&](std::size_t r) {
            std::uint16_t bits;
            std::memcpy(&bits, from[r] + i * 2, 2);
            return from_bfloat(bits);
        };
        float sum = at(0);
        for (std::size_t r = 1; r < from.size(); ++r) sum = apply(sum, at(r), op);
        if (op == 4) sum /= static_cast<float>(from.size());
        const std::uint16_t bits = to_bfloat(sum);
        std::memcpy(to + i * 2, &bits, 2);
    }
}

std::size_t size_of(int type) {
    constexpr std::size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type < 0 || type > 11 ? 0 : sizes[type];
}

void reduce_type(int type, const std::vector<const char*>& from, char* to, std::size_t bytes, int op) {
    switch (type) {
        case 0:
            return reduce<std::int8_t>(from, to, bytes, op);
        case 1:
            return reduce<std::uint8_t>(from, to, bytes, op);
        case 2:
            return reduce<std::int32_t>(from, to, bytes, op);
        case 3:
            return reduce<std::uint32_t>(from, to, bytes, op);
        case 4:
            return reduce<std::int64_t>(from, to, bytes, op);
        case 5:
            return reduce<std::uint64_t>(from, to, bytes, op);
        case 7:
            return reduce<float>(from, to, bytes, op);
        case 8:
            return reduce<double>(from, to, bytes, op);
        default:
            return reduce_bfloat(from, to, bytes, op);
    }
}

// --- work in streams

void release(Comm* comm) {
    if (--comm->uses == 0) delete comm;
}

void enqueue(Comm* comm, void* stream, std::function<void()> work, int& result) {
    struct Job {
        Comm* comm;
        std::function<void()> work;
    };
    ++comm->uses;
    auto* const job = new Job{comm, std::move(work)};
    const int code = stand_in_enqueue(
        stream,
        [](void* argument) {
            const std::unique_ptr<Job> job(static_cast<Job*>(argument));
            ++job->comm->running;
            if (!job->comm->abort) job->work();
            --job->comm->running;
            release(job->comm);
        },
        job);
    if (code != 0) {
        release(comm);
        delete job;
        result = fail(1, "the stream does not exist");
    }
}

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

// Runs a call, which waits for all ranks if it is the first: in the caller's thread, or, on a communicator
// that does not block, in another one.
int run_call(Comm* comm, void* stream, const std::function<int(void* stream)>& body) {
    if (comm == nullptr) return fail(4, "communicator is null");
    if (comm->state == 7) {
        comm->state = 4;
        return fail(4, "Attempt to use communicator before the previous operation returned ncclSuccess");
    }
    if (comm->revoked) return fail(5, "communicator was revoked");
    void* const resolved = stand_in_resolve(stream);
    if (resolved == nullptr) return fail(1, "the stream does not exist");
    const auto whole = [comm, resolved, body] {
        if (!comm->connected) {
            if (!comm->barrier()) return 3;
            comm->connected = true;
        }
        return body(resolved);
    };
    if (comm->blocking) return whole();
    if (comm->starting.joinable()) comm->starting.join();
    comm->state = 7;
    comm->starting = std::thread([comm, whole] { comm->state = whole(); });
    return 7;
}

int check(const void* pointer, std::size_t bytes, const char* name) {
    if (bytes == 0 || stand_in_is_device(reinterpret_cast<std::uint64_t>(pointer), bytes) != 0) return 0;
    return fail(4, std::string(name) + " is not a valid pointer");
}

struct Message {
    bool sends;
    char* data;
    std::size_t bytes;
    int peer;
    std::size_t moved = 0;
    bool over = false;
};
thread_local bool grouped = false;
thread_local std::vector<Message> messages;
thread_local Comm* messages_of = nullptr;
thread_local void* messages_in = nullptr;

// Returns whether anything moved.
bool move(Comm* comm, Message& m) {
    Shared::Box& box =
        m.sends ? comm->shared->boxes[comm->rank][m.peer] : comm->shared->boxes[m.peer][comm->rank];
    if (m.sends != (box.length.load() == 0)) return false;
    if (m.sends) {
        const std::size_t now = std::min(box_bytes, m.bytes - m.moved);
        std::memcpy(box.data, m.data + m.moved, now);
        m.moved += now;
        box.length.store(static_cast<std::uint32_t>(now) + 1);
    } else {
        const std::size_t now = std::min<std::size_t>(box.length.load() - 1, m.bytes - m.moved);
        std::memcpy(m.data + m.moved, box.data, now);
        m.moved += now;
        box.length.store(0);
    }
    m.over = m.moved == m.bytes;
    return true;
}

int run_messages() {
    if (messages.empty()) return 0;
    Comm* const comm = messages_of;
    const auto body = [comm, all = messages](void* stream) {
        int result = 0;
        enqueue(
            comm, stream,
            [comm, all]() mutable {
                while (!comm->abort) {
                    bool moved = false;
                    bool over = true;
                    for (Message& m : all) {
                        if (!m.over) moved |= move(comm, m);
                        over &= m.over;
                    }
                    if (over) return;
                    if (!moved) Comm::nap();
                }
            },
            result);
        return result;
    };
    messages.clear();
    return run_call(comm, messages_in, body);
}

int message(bool sends, void* data, std::size_t count, int type, int peer, Comm* comm, void* stream) {
    messages.push_back({sends, static_cast<char*>(data), count * size_of(type), peer});
    messages_of = comm;
    messages_in = stream;
    return grouped ? 0 : run_messages();
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
EXPORT const char* ncclGetLastError(Comm*) { return last_error.c_str(); }
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
    auto* const comm = new Comm;
    comm->rank = rank;
    comm->size = size;
    comm->blocking = config->blocking != 0;
    comm->file = id.internal;
    comm->state = 7;
    *made = comm;
    const int device = stand_in_device();
    const auto start = [comm, device] {
        if (!comm->open()) return comm->state.store(2);
        comm->shared->devices[comm->rank] = device + 1;
        if (!comm->barrier()) return comm->state.store(3);
        const char* const allowed = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
        const bool may_share = allowed != nullptr && std::strcmp(allowed, "1") == 0;
        for (int r = 0; r < comm->size; ++r) {
            const bool same = r != comm->rank && comm->shared->devices[r] == device + 1;
            if (same && !may_share) return comm->state.store(5);
        }
        comm->state = 0;
    };
    if (comm->blocking) {
        start();
        return comm->state;
    }
    comm->starting = std::thread(start);
    return 7;
}
EXPORT int ncclCommSplit(Comm* comm, int, int key, Comm** made, Config* config) {
    if (comm->state == 7) return fail(4, "Attempt to use communicator before it was ready");
    *made = nullptr;
    if (comm->starting.joinable()) comm->starting.join();
    auto* const child = new Comm;
    child->rank = key;
    child->size = comm->size;
    child->blocking = config->blocking != 0;
    child->file = comm->file + "-" + std::to_string(++comm->splits);
    comm->state = 7;
    const auto start = [comm, child, made] {
        const bool done = comm->barrier() && child->open();
        if (!done) {
            delete child;
            return comm->state.store(3);
        }
        *made = child;
        comm->state = 0;
    };
    if (comm->blocking) {
        start();
        return comm->state;
    }
    comm->starting = std::thread(start);
    return 7;
}
EXPORT int ncclCommAbort(Comm* comm) {
    if (comm == nullptr) return 0;
    comm->abort = true;
    while (comm->running > 0) Comm::nap();
    release(comm);
    return 0;
}
EXPORT int ncclCommDestroy(Comm* comm) {
    while (comm->uses > 1) Comm::nap();
    release(comm);
    return 0;
}
EXPORT int ncclGroupStart() {
    grouped = true;
    return 0;
}
EXPORT int ncclGroupEnd() {
    grouped = false;
    return run_messages();
}
EXPORT int ncclSend(const void* data, std::size_t count, int type, int peer, Comm* comm, void* stream) {
    return message(true, const_cast<void*>(data), count, type, peer, comm, stream);
}
EXPORT int ncclRecv(void* data, std::size_t count, int type, int peer, Comm* comm, void* stream) {
    return message(false, data, count, type, peer, comm, stream);
}
EXPORT int ncclReduce(const void* in, void* out, std::size_t count, int type, int op, int root, Comm* comm,
                      void* stream) {
    const std::size_t bytes = count * size_of(type);
    const bool takes = root < 0 || root == comm->rank;
    if (size_of(type) == 0 || type == 6) return fail(4, "invalid type " + std::to_string(type));
    int result = check(in, bytes, "sendbuff");
    if (result == 0 && takes) result = check(out, bytes, "recvbuff");
    if (result != 0) return result;
    return run_call(comm, stream, [=](void* in_stream) {
        int enqueued = 0;
        enqueue(
            comm, in_stream,
            [=] {
                all_to_see(comm, static_cast<const char*>(in), bytes,
                           [&](auto at, auto now, const auto& pieces) {
                               if (takes) reduce_type(type, pieces, static_cast<char*>(out) + at, now, op);
                           });
            },
            enqueued);
        return enqueued;
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
        int enqueued = 0;
        enqueue(
            comm, in_stream,
            [=] {
                std::vector<char> whole(all);
                all_to_see(comm, static_cast<const char*>(in), all,
                           [&](auto at, auto now, const auto& pieces) {
                               reduce_type(type, pieces, whole.data() + at, now, op);
                           });
                std::memcpy(out, whole.data() + part * static_cast<std::size_t>(comm->rank), part);
            },
            enqueued);
        return enqueued;
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
        int enqueued = 0;
        enqueue(
            comm, in_stream,
            [=] {
                all_to_see(comm, gives ? static_cast<const char*>(in) : nullptr, bytes,
                           [&](auto at, auto now, const auto& pieces) {
                               std::memmove(static_cast<char*>(out) + at,
                                            pieces[static_cast<std::size_t>(root)], now);
                           });
            },
            enqueued);
        return enqueued;
    });
}
EXPORT int ncclAllGather(const void* in, void* out, std::size_t count, int type, Comm* comm, void* stream) {
    const std::size_t bytes = count * size_of(type);
    int result = check(in, bytes, "sendbuff");
    if (result == 0) result = check(out, bytes * static_cast<std::size_t>(comm->size), "recvbuff");
    if (result != 0) return result;
    return run_call(comm, stream, [=](void* in_stream) {
        int enqueued = 0;
        enqueue(
            comm, in_stream,
            [=] {
                all_to_see(comm, static_cast<const char*>(in), bytes,
                           [&](auto at, auto now, const auto& pieces) {
                               for (std::size_t r = 0; r < pieces.size(); ++r) {
                                   std::memcpy(static_cast<char*>(out) + r * bytes + at, pieces[r], now);
                               }
                           });
            },
            enqueued);
        return enqueued;
    });
}

#ifndef STAND_IN_OLD
EXPORT int ncclCommRevoke(Comm* comm, int) {
    comm->revoked = true;
    comm->abort = true;
    return 0;
}
#endif
