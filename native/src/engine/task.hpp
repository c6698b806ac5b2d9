// One operation under way in host memory, as the communicator core sees it.
//
// Invariant: nothing here blocks, and one thread at a time calls. The caller owns all memory that a request
// names, and keeps it and the request unchanged until the task has ended. A task may throw Error from
// `begin`, `progress` and `awaited`: peer_lost, desync, or invalid where only this call is wrong.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/export.hpp"
#include "base/function_ref.hpp"
#include "link/link.hpp"

namespace collectives {

class GeneralizedRequest;
class Operation;

// A lock that the caller of an operation holds, such as Python's. It is released before this rank waits.
class CallerLock {
  public:
    virtual void release() = 0;  // may be called again

  protected:
    ~CallerLock() = default;
};

// Of a message that was received: from whom, and how many elements.
struct Receipt {
    int source = -1;
    std::uint64_t count = 0;
};

// What is to be run. The clock is read only once something has to be waited for.
struct Request {
    const Operation* operation = nullptr;
    Call call;                      // the operation's, with sequence and epoch
    std::uint32_t fingerprint = 0;  // of the call, and of those before it
    std::byte* in = nullptr;
    std::byte* out = nullptr;
    std::span<Link* const> links;                        // by rank; null where the operation needs none
    double timeout = 0;                                  // seconds
    const std::function<bool()>* interrupted = nullptr;  // asked now and then; true ends the operation
    CallerLock* lock = nullptr;
    Receipt* receipt = nullptr;  // of a message: written once it is known
    // Where code outside of the core does the operation; the memory that it works on is then not known.
    GeneralizedRequest* generalized = nullptr;
    std::uint64_t record = 0;  // its number in the Recorder; 0: it has none yet
    std::uint64_t queued = 0;  // when it was started, in ticks, if that was read
    // How results that no later step reads are stored, and whether that was chosen by the caches' size.
    Stores stores = Stores::cached;
    bool knows_caches = false;

    bool is_in_place() const { return in == out; }
};

// A peer that has to do something before a task can go on: to send, or to receive what we send it.
struct Awaited {
    int peer = -1;
    bool sending = false;  // we send
};

// How a task begins among those that are under way.
struct Position {
    bool alone = true;        // there are none
    bool owns_memory = true;  // none of them works on its memory
};

// One direction of a link, and the first and the last step of a task that use it.
struct ChannelUse {
    std::uint32_t channel = 0;  // 2 * peer to send, 2 * peer + 1 to receive
    std::uint32_t first = 0;
    std::uint32_t last = 0;
};

// The links that a task uses. On each direction of a link, a channel, operations take turns in the order in
// which they were started: the first step that uses the channel waits.
class Channels {
  public:
    virtual std::span<const ChannelUse> uses() const = 0;  // ascending
    // Whether the task does not use that channel any more.
    virtual bool is_through_with(std::uint32_t channel) const = 0;
    // That step waits; and, as often as it was made to wait, goes on. Between `begin` and the end.
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

    // Take up a request. It may change `call` and `fingerprint` once it knows which message it receives.
    virtual void begin(Request& request, const Position& position) = 0;
    // Do what can be done now; whether anything moved.
    virtual bool progress() = 0;
    virtual bool complete() const = 0;
    // Add the peers without whose doing nothing moves.
    virtual void awaited(std::vector<Awaited>& result) = 0;
    // The group is broken, and the task is not complete: peers that read our memory must not take it for what
    // was sent.
    virtual void abandon() = 0;
    // After all tasks were abandoned: peers that may be writing to the caller's memory reach it no more.
    // False where that cannot be ensured.
    virtual bool reclaim() = 0;
    // It is over, complete or not. The task keeps what the next one can use.
    virtual void end() = 0;

    // --- for those who wait
    // Whether `test` holds for one of those that are awaited.
    virtual bool waits_for(PeerTest test);
    // Whether any one of those that are awaited will do.
    virtual bool waits_for_any() const { return false; }
    // Whether every rank depends on every other one, and learns of them through links alone.
    virtual bool depends_on_all() const { return false; }
    // How much longer than the request's timeout it may take, if it finds the reason for that meanwhile.
    virtual std::chrono::nanoseconds grace() const { return {}; }
    // This rank goes to sleep, or has woken.
    virtual void set_asleep(bool /*asleep*/) {}

    // Null where it uses no links.
    virtual Channels* channels() { return nullptr; }

  private:
    std::vector<Awaited> awaited_;  // kept to save allocations
};

}  // namespace collectives
