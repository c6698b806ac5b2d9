// What the calls of the stand-in for NCCL have in common: the memory of its ranks, and work in streams.
#include "comm.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>

namespace stand_in {

namespace {

thread_local std::string last;

struct Queued {
    Comm* comm;
    void* stream;
    std::function<int(void*)> body;
};
thread_local int groups = 0;  // one inside another
thread_local std::vector<Queued> queued;

// Held by work in streams: keeps the communicator as long.
class Use {
  public:
    explicit Use(Comm* comm) : comm_(comm) { ++comm_->uses; }
    Use(const Use& other) : Use(other.comm_) {}
    Use& operator=(const Use&) = delete;
    ~Use() { comm_->release(); }
    Comm* operator->() const { return comm_; }
    Comm* comm() const { return comm_; }

  private:
    Comm* comm_;
};

// The same for a call that a graph holds.
class GraphUse {
  public:
    GraphUse(Comm* comm, bool is_captured) : use_(comm), is_captured_(is_captured) { count(1); }
    GraphUse(const GraphUse& other) : GraphUse(other.use_.comm(), other.is_captured_) {}
    GraphUse& operator=(const GraphUse&) = delete;
    ~GraphUse() { count(-1); }
    Comm* operator->() const { return use_.comm(); }

  private:
    void count(int change) {
        if (is_captured_) use_->graphs += change;
    }
    Use use_;
    bool is_captured_;
};

}  // namespace

Comm::~Comm() {
    if (starting.joinable()) starting.join();
    if (shared != nullptr) ::munmap(shared, sizeof(Shared));
    if (rank == 0 && !file.empty()) ::unlink(file.c_str());
}

bool Comm::open() {
    const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ::ftruncate(fd, sizeof(Shared)) != 0) return false;
    void* const data = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    if (data == MAP_FAILED) return false;
    shared = static_cast<Shared*>(data);
    return true;
}

void Comm::nap() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

bool Comm::barrier() {
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

void Comm::release() {
    if (--uses == 0) delete this;
}

int fail(int code, const std::string& text) {
    last = text;
    return code;
}

const char* last_error() { return last.c_str(); }

int enqueue(Comm* comm, void* stream, const std::function<void()>& work) {
    const bool is_captured = stand_in_is_captured(stream) != 0;
    const std::function<void()> job = [use = GraphUse(comm, is_captured), work] {
        ++use->running;
        if (!use->abort) work();
        --use->running;
    };
    return stand_in_enqueue(stream, &job) == 0 ? 0 : fail(1, "the stream does not exist");
}

int run_call(Comm* comm, void* stream, const std::function<int(void* stream)>& body) {
    if (comm == nullptr) return fail(4, "communicator is null");
    if (groups > 0) {
        queued.push_back({comm, stream, body});
        return 0;
    }
    if (comm->state == 7) {
        comm->state = 4;
        return fail(4, "Attempt to use communicator before the previous operation returned ncclSuccess");
    }
    if (comm->revoked) return fail(5, "communicator was revoked");
    void* const resolved = stand_in_resolve(stream);
    if (resolved == nullptr) return fail(1, "the stream does not exist");
    if (!comm->connected && stand_in_unsafe_in_capture() != 0) {
        return fail(1, "operation not permitted when stream is capturing");
    }
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

void begin_group() { ++groups; }

bool in_group() { return groups > 0; }

int end_group() {
    if (--groups > 0) return 0;
    const std::vector<Queued> all = std::move(queued);
    queued.clear();
    if (all.empty()) return 0;
    // All of this library's groups are of one communicator and one stream.
    return run_call(all.front().comm, all.front().stream, [all](void* stream) {
        for (const Queued& one : all) {
            if (const int result = one.body(stream); result != 0) return result;
        }
        return 0;
    });
}

int check(const void* pointer, std::size_t bytes, const char* name) {
    if (bytes == 0 || stand_in_is_device(reinterpret_cast<std::uint64_t>(pointer), bytes) != 0) return 0;
    return fail(4, std::string(name) + " is not a valid pointer");
}

}  // namespace stand_in
