// A stand-in for NCCL, for tests on machines without a GPU: its entry points on host memory, between
// processes and threads of one machine. It shows how this library loads, orders, aborts and frees, and
// nothing about NCCL's speed, memory, or what NCCL does when it is used wrongly in other ways than those
// below.
//
// Invariant: as in NCCL, a dead or missing rank is noticed by nobody: calls and streams wait until they are
// aborted. Aborted work that has not begun is skipped when its stream comes to it. A call on a communicator
// that is not ready gives error 4, the first call on a communicator waits for all ranks, two ranks on one
// device are refused, and a communicator that is made, or called first, while a stream is captured ends the
// capture, unless the thread is in relaxed mode. An abort and a
// destruction return only when no graph holds a call of the communicator any more.
//
// STAND_IN_VERSION is the version that it claims to be; STAND_IN_OLD leaves out what only later versions
// have.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#ifndef STAND_IN_VERSION
#define STAND_IN_VERSION 23203
#endif
#define EXPORT extern "C" __attribute__((visibility("default")))

// Of the stand-in for the driver.
extern "C" {
int stand_in_enqueue(void* stream, const std::function<void()>* work);
void* stand_in_resolve(void* stream);
int stand_in_is_device(std::uint64_t address, std::size_t bytes);
int stand_in_device();
int stand_in_allocate(std::uint64_t* pointer, std::size_t bytes, int kind);
int stand_in_unsafe_in_capture();
int stand_in_is_captured(void* stream);
}

namespace stand_in {

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
    int cga_cluster_size;
    int min_ctas;
    int max_ctas;
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
    std::atomic<int> graphs{0};   // calls that graphs hold, and what is left of their launches
    std::uint32_t barriers = 0;   // of its stream's work, or of a call: never both at once
    bool connected = false;
    int splits = 0;
    int blocks = 0;  // the most that it may use
    std::thread starting;

    ~Comm();
    bool open();
    static void nap();
    // False if it was aborted.
    bool barrier();
    void release();
};

// Notes the text for ncclGetLastError, and returns the code.
int fail(int code, const std::string& text);
const char* last_error();

// Puts work into a stream; a stream that is captured runs it at each launch.
int enqueue(Comm* comm, void* stream, const std::function<void()>& work);

// Runs a call, which waits for all ranks if it is the first: in the caller's thread, or, on a communicator
// that does not block, in another one; in a group, at its end.
int run_call(Comm* comm, void* stream, const std::function<int(void* stream)>& body);

// Groups may be one inside another; the outermost one runs the calls.
void begin_group();
bool in_group();
int end_group();

// Error 4 unless these bytes are memory of a device.
int check(const void* pointer, std::size_t bytes, const char* name);

// 0 for an unknown type.
std::size_t size_of(int type);
void reduce_type(int type, const std::vector<const char*>& from, char* to, std::size_t bytes, int op);

}  // namespace stand_in
