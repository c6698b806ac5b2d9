// What a rank shares, beside messages, with peers that can see its memory: its calls, the core on which it
// runs, whether it sleeps, and memory that the peers can read and write.
//
// A transport whose links use shared memory has one object of this kind for each communicator. Invariant:
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

// A bell in shared memory, with which peers in other processes end this rank's sleep.
class COLLECTIVES_API Doorbell {
  public:
    virtual ~Doorbell() = default;
    // Tell peers to ring from now on: at the descriptor, too, or at the bell alone.
    virtual void arm(bool at_descriptor) = 0;
    virtual void disarm() = 0;
    // Wait until a peer has rung since `arm`, or for `timeout`; only if peers ring at the bell alone.
    virtual void wait(std::chrono::nanoseconds timeout) = 0;
    // Ring at this rank's own bell, from any thread of this process.
    virtual void ring() = 0;
    // A file descriptor that is readable after a peer has rung at it. Valid as long as the communicator.
    virtual int descriptor() const = 0;
};

// Bytes that a rank's shared memory takes.
struct SharedMemoryUse {
    std::size_t mapped = 0;   // reserved, for all but arrays
    std::size_t touched = 0;  // part of `mapped` that is in physical memory
    std::size_t staging = 0;  // part of `mapped` that is reserved for staged messages
    std::size_t heap = 0;     // arrays that are in use
};

class COLLECTIVES_API Colocation {
  public:
    Colocation() = default;
    Colocation(const Colocation&) = delete;
    Colocation& operator=(const Colocation&) = delete;
    virtual ~Colocation() = default;

    // Let peers see that this rank has begun that call.
    virtual void publish(const Call& call) = 0;
    // This rank's collective with the highest sequence number.
    virtual std::optional<Call> last_collective() const = 0;
    // A peer that has found a disagreement: ranks called different operations where this rank has called one,
    // too. The link to this peer is open, and its throw_disagreement throws the error.
    virtual std::optional<int> accuser() const = 0;
    // Let peers see that this rank sends nothing any more; `lost`: the rank whose loss is the reason.
    virtual void mark_closed(std::optional<int> lost) = 0;

    // The record in which this rank publishes its core; null if peers cannot use it.
    virtual Presence* presence() = 0;
    // Null if peers end this rank's sleep by its Waker.
    virtual Doorbell* doorbell() = 0;
    // A counter that is odd while this rank may read announced memory of peers, see Link::abandon; null if no
    // peer needs it.
    virtual std::atomic<std::uint64_t>* passes() = 0;

    // --- from any thread
    // Memory that peers can read and write in place, 64-byte aligned; null if there is none left. It may be
    // used longer than the communicator.
    virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;
    virtual SharedMemoryUse memory() const = 0;
};

}  // namespace collectives
