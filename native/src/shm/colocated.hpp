// What the engines of shared memory have in common: the boards and the pool of one communicator.
//
// Invariant: the data by which engines are chosen is the same on all ranks of a communicator, and set before
// its first operation.
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
    // A board, and its operations that are not complete, in their order.
    struct Owned {
        MessageBoard board;
        std::vector<const BoardEntry*> queue;
    };

    Surroundings& surroundings;
    Mechanisms mechanisms;       // the mechanisms that are on
    std::vector<Owned> boards;   // by the rank whose memory has the board
    std::unique_ptr<Pool> pool;  // made by the first pooled operation

    explicit Colocated(Surroundings& around)
        : surroundings(around), mechanisms(Mechanisms::from_environment()) {}

    bool has(Mechanism mechanism) const { return mechanisms.has(mechanism); }
    // Whether all ranks of the communicator share memory through this transport.
    bool all() {
        return surroundings.all_share_memory.load(std::memory_order_relaxed) && memory() != nullptr;
    }
    bool is_oversubscribed() const { return surroundings.oversubscribed; }

    // This rank's shared memory; null if it has none.
    GroupMemory* memory() {
        if (memory_ == nullptr) memory_ = surroundings.commons.find<GroupMemory>();
        return memory_;
    }
    // Only if this rank has shared memory:
    const std::shared_ptr<Arena>& arena() { return memory()->arena(); }
    // The link to that peer if it is open and uses shared memory; else null.
    ShmLink* link(int peer) { return memory()->link(peer); }
    // The arenas of all ranks, by rank.
    std::vector<std::shared_ptr<Arena>> arenas(const Request& request);
    // Wake those of these peers that sleep.
    void wake(std::span<const int> peers);
    // Throws if ranks called different operations, as far as this rank and the awaited peers know.
    void look_for_other_calls(const Request& request, std::span<const Awaited> awaited);
    // Keep peers that read this rank's memory from accepting its content as the message.
    void abandon(const Request& request);

  private:
    GroupMemory* memory_ = nullptr;
    std::vector<ShmLink*> woken_;  // kept to save allocations
};

// The object of the communicator, made at the first call.
Colocated& colocated_of(Surroundings& surroundings);

}  // namespace collectives
