// The interface of a task: one operation in progress in host memory, as the communicator core sees it.
//
// Invariant: nothing here blocks, and one thread at a time calls. The caller owns all memory that a request
// names, and keeps it and the request unchanged until the task has ended. A task may throw Error from
// `begin`, `progress` and `awaited`: peer_lost, desync, or, if only this call is wrong, invalid.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/export.hpp"
#include "base/function_ref.hpp"
#include "base/transfer.hpp"
#include "link/link.hpp"

namespace collectives {

class GeneralizedRequest;
class Operation;

// A lock that the caller of an operation holds, such as Python's. It is released before this rank waits.
class CallerLock {
  public:
    virtual void release() = 0;  // may be called several times

  protected:
    ~CallerLock() = default;
};

// The sender and the number of elements of a received message.
struct Receipt {
    int source = -1;
    std::uint64_t count = 0;
};

// An operation to run, with its memory. The clock is read only when the operation has to wait.
struct Request {
    const Operation* operation = nullptr;
    Call call;                      // the operation's, with sequence and epoch
    std::uint32_t fingerprint = 0;  // of this call and all calls before it
    std::byte* in = nullptr;
    std::byte* out = nullptr;
    std::span<Link* const> links;  // by rank; null if the operation needs no link to that rank
    double timeout = 0;            // seconds
    const std::function<bool()>* interrupted = nullptr;  // called at intervals; true ends the operation
    CallerLock* lock = nullptr;
    Receipt* receipt = nullptr;  // of a message: written once it is known
    // If code outside of the core runs the operation; the core then does not know its memory.
    GeneralizedRequest* generalized = nullptr;
    // If its input arrives, or its output leaves, while the operation runs. Only the schedule engine may get
    // the request before all input is there, see Group::may_begin_early.
    Transfer* transfer = nullptr;
    std::uint64_t record = 0;  // its number in the Recorder; 0: it has none yet
    std::uint64_t queued = 0;  // when it was started, in ticks; 0 if the clock was not read
    // How to store results that no later step reads, and whether this was chosen by the size of the caches.
    Stores stores = Stores::cached;
    bool knows_caches = false;

    bool is_in_place() const { return in == out; }
};

// A peer that must send to this rank, or receive what this rank sends, before a task can go on.
struct Awaited {
    int peer = -1;
    bool sending = false;  // this rank sends
};

// How a new task relates to the tasks in progress.
struct Position {
    bool alone = true;        // there are no others
    bool owns_memory = true;  // no other task works on its memory
};

// One direction of a link, and the first and the last step of a task that use it.
struct ChannelUse {
    std::uint32_t channel = 0;  // 2 * peer to send, 2 * peer + 1 to receive
    std::uint32_t first = 0;
    std::uint32_t last = 0;
};

// The links that a task uses. Each direction of a link, a channel, serves operations in the order in which
// they were started: a task's first step that uses the channel waits for its turn.
class Channels {
  public:
    virtual std::span<const ChannelUse> uses() const = 0;  // ascending
    // Whether the task has finished with that channel.
    virtual bool is_through_with(std::uint32_t channel) const = 0;
    // `block` makes a step wait. The step goes on after as many calls of `unblock`. Called between `begin`
    // and `end`.
    virtual void block(std::uint32_t step) = 0;
    virtual void unblock(std::uint32_t step) = 0;

  protected:
    ~Channels() = default;
};

class COLLECTIVES_API Task {
  public:
    using PeerTest = FunctionRef<bool(int peer)>;

    Task() = default;
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;
    virtual ~Task() = default;

    // Start a request. The task changes `call` and `fingerprint` of the request when it knows which message
    // it receives.
    virtual void begin(Request& request, const Position& position) = 0;
    // Do as much as possible now; returns whether anything moved.
    virtual bool progress() = 0;
    virtual bool complete() const = 0;
    // Add to `result` the peers for which the task waits.
    virtual void awaited(std::vector<Awaited>& result) = 0;
    // The group is broken before the task is complete: keep peers that read this rank's memory from accepting
    // its content as the message.
    virtual void abandon() = 0;
    // After all tasks were abandoned: keep peers from writing to the caller's memory any more. Returns false
    // if that cannot be ensured.
    virtual bool reclaim() = 0;
    // The operation is over, complete or not. The task keeps memory that the next operation can use.
    virtual void end() = 0;

    // --- for the code that waits
    // Whether `test` holds for one of the awaited peers.
    virtual bool waits_for(PeerTest test);
    // Whether any one of the awaited peers suffices.
    virtual bool waits_for_any() const { return false; }
    // Whether every rank depends on every other rank, and notices only through links what they do.
    virtual bool depends_on_all() const { return false; }
    // The time beyond the request's timeout that the task may take to find the reason for the delay.
    virtual std::chrono::nanoseconds grace() const { return {}; }
    // Whether it waits for something of which nothing wakes this rank.
    virtual bool waits_unseen() const { return false; }
    // This rank is about to sleep, or has woken up.
    virtual void set_asleep(bool /*asleep*/) {}

    // Null if the task uses no links.
    virtual Channels* channels() { return nullptr; }

  private:
    std::vector<Awaited> awaited_;  // kept to save allocations
};

}  // namespace collectives
