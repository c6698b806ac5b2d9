// What the engines of shared memory have in common: the boards and the pool of one communicator.
//
// Invariant: what their choice depends on is the same on all ranks of a communicator, and set before its
// first operation.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mechanisms.hpp"
#include "engine/engine.hpp"
#include "schedule/program.hpp"
#include "shm/board.hpp"
#include "shm/memory.hpp"
#include "shm/pool.hpp"

namespace collectives {

class BoardEntry;

struct Colocated {
    // A board with the operations on it that are not complete, in their order.
    struct Owned {
        MessageBoard board;
        std::vector<const BoardEntry*> queue;
    };

    Surroundings& surroundings;
    Mechanisms mechanisms;       // that are on
    std::vector<Owned> boards;   // by the rank in whose memory the board lies
    std::unique_ptr<Pool> pool;  // once there was a pooled operation

    explicit Colocated(Surroundings& around)
        : surroundings(around), mechanisms(Mechanisms::from_environment()) {}

    bool has(Mechanism mechanism) const { return mechanisms.has(mechanism); }
    // Whether all ranks of the communicator share memory of this kind.
    bool all() {
        return surroundings.all_share_memory.load(std::memory_order_relaxed) && memory() != nullptr;
    }
    bool is_oversubscribed() const { return surroundings.oversubscribed; }

    // This rank's; null where it has none.
    GroupMemory* memory() {
        if (memory_ == nullptr) memory_ = surroundings.commons.find<GroupMemory>();
        return memory_;
    }
    // Where it has some:
    const std::shared_ptr<Arena>& arena() { return memory()->arena(); }
    // The link to that peer if it is there and goes through shared memory; else null.
    ShmLink* link(int peer) { return memory()->link(peer); }
    // All ranks' memory, in their order.
    std::vector<std::shared_ptr<Arena>> arenas(const Request& request);
    // Ring those of these peers that sleep.
    void wake(std::span<const int> peers);
    // Throws if ranks called different things, as far as this rank and these peers know.
    void look_for_other_calls(const Request& request, std::span<const Awaited> awaited);
    // Peers must not take what they read in our memory for what was sent.
    void abandon(const Request& request);

  private:
    GroupMemory* memory_ = nullptr;
    std::vector<ShmLink*> woken_;  // kept to save allocations
};

// The communicator's, made where there is none.
Colocated& colocated_of(Surroundings& surroundings);

}  // namespace collectives
