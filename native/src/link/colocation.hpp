// What a rank shares, beside messages, with peers that can see its memory: its calls, where it runs, whether
// it sleeps, and memory that they can read and write.
//
// A transport whose links go through memory has one object of this kind for each communicator. Invariant:
// nothing here blocks but Doorbell::wait.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/export.hpp"
#include "link/link.hpp"
#include "link/presence.hpp"

namespace collectives {

// How peers in other processes end this rank's sleep.
class COLLECTIVES_API Doorbell {
  public:
    virtual ~Doorbell() = default;
    // Tell peers to ring from now on, also at the descriptor of the rank's sleep or at the bell alone.
    virtual void arm(bool at_descriptor) = 0;
    virtual void disarm() = 0;
    // Until somebody has rung since `arm`, or for that long; where peers ring at the bell alone.
    virtual void wait(std::chrono::nanoseconds timeout) = 0;
    // From any thread of this process.
    virtual void ring() = 0;
    // Readable once a peer has rung at it. Valid as long as the communicator.
    virtual int descriptor() const = 0;
};

// Bytes that a rank's shared memory takes.
struct SharedMemoryUse {
    std::size_t mapped = 0;   // reserved, for all but arrays
    std::size_t touched = 0;  // of these, in memory
    std::size_t staging = 0;  // of these, reserved for messages that are staged
    std::size_t heap = 0;     // arrays that are in use
};

class COLLECTIVES_API Colocation {
  public:
    Colocation() = default;
    Colocation(const Colocation&) = delete;
    Colocation& operator=(const Colocation&) = delete;
    virtual ~Colocation() = default;

    // This rank has begun that call.
    virtual void publish(const Call& call) = 0;
    // Its collective of the highest number.
    virtual std::optional<Call> last_collective() const = 0;
    // A peer that has found that ranks called different things, in operations which this rank has begun. The
    // link to it is there, and throws by Link::throw_disagreement.
    virtual std::optional<int> accuser() const = 0;
    // This rank sends nothing any more; `lost`: the rank whose loss is the reason.
    virtual void mark_closed(std::optional<int> lost) = 0;

    // Where this rank publishes on which core it runs; null where peers cannot use that.
    virtual Presence* presence() = 0;
    // Null where peers end the sleep by the rank's Waker.
    virtual Doorbell* doorbell() = 0;
    // Odd while this rank may read what peers have announced, see Link::abandon; null where nobody needs it.
    virtual std::atomic<std::uint64_t>* passes() = 0;

    // --- from any thread
    // Memory that peers can read and write where it lies, 64-byte aligned; null where there is none left. It
    // may be used longer than the communicator.
    virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;
    virtual SharedMemoryUse memory() const = 0;
};

}  // namespace collectives
