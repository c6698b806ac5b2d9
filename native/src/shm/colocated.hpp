// What a rank shares with the other ranks of its host: its own memory, and what operations in such memory
// have in common.
//
// Invariant: what the engines' choice depends on (`all`, `processes`, `oversubscribed`, `mechanisms`) is the
// same on all ranks of a communicator, and set before its first operation.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "schedule/program.hpp"
#include "shm/board.hpp"
#include "shm/caster.hpp"
#include "shm/mechanisms.hpp"
#include "shm/pool.hpp"

namespace collectives {

class BoardEntry;

// The link to that peer if it is there and goes through shared memory; else null.
inline ShmLink* shm_link(const Request& request, int peer) {
    Link* const to = request.links[static_cast<std::size_t>(peer)];
    return to == nullptr ? nullptr : to->shared_memory();
}

// What a peer publishes in the memory that it shares; null where it shares none.
inline const Arena* arena_of(const Request& request, int peer) {
    const ShmLink* const link = shm_link(request, peer);
    return link == nullptr ? nullptr : link->arena_of_peer().get();
}

struct Colocated {
    // A board with the operations on it that are not complete, in their order.
    struct Owned {
        MessageBoard board;
        std::vector<const BoardEntry*> queue;
    };

    std::shared_ptr<Arena> arena;        // ours, or null
    std::unique_ptr<Caster> caster;      // stages what several peers read
    std::atomic<bool> all{false};        // all ranks of the group share memory,
    std::atomic<bool> processes{false};  // and none of them is a thread
    bool oversubscribed = false;         // ranks outnumber cores, on some host
    Mechanisms mechanisms;               // that are on
    std::uint32_t pieces = 0;            // of shared reductions so far
    std::vector<Owned> boards;           // by the rank in whose memory the board lies
    std::unique_ptr<Pool> pool;          // once there was a pooled operation

    explicit Colocated(bool oversubscribed)
        : oversubscribed(oversubscribed), mechanisms(Mechanisms::from_environment()) {}

    bool has(Mechanism mechanism) const { return mechanisms.has(mechanism); }
    void share(std::shared_ptr<Arena> own);
    void close();

    // All ranks' memory, in their order.
    std::vector<std::shared_ptr<Arena>> arenas(const Request& request) const;
    // Ring those of these peers that sleep.
    void wake(const Request& request, std::span<const int> peers);

    // Publish what this rank has begun. Throws where a peer has found that ranks called different things.
    void announce(const Request& request);
    // Throws if a peer has told this rank of ranks that called different things.
    void throw_disagreement(const Request& request) const;
    // The same, and if one of these is in another operation than this one.
    void look_for_other_calls(const Request& request, std::span<const Awaited> awaited) const;
    // Peers must not take what they read in our memory for what was sent. `shown`: they may read something
    // that no message has told them of.
    static void abandon(const Request& request, bool shown);

  private:
    std::vector<ShmLink*> woken_;  // kept to save allocations
};

}  // namespace collectives
