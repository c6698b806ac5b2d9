// How an operation fails: ranks that called different things learn of it, and peers let go of the caller's
// memory.
#include <algorithm>
#include <exception>

#include "schedule/run.hpp"

namespace collectives {

void Run::abandon() {
    if (complete()) return;
    for (const int peer : operation().program().peers) {
        if (ShmLink* const shm = shared_memory(peer)) shm->abandon(shows_memory_);
    }
}

bool Run::reclaim() {
    if (complete()) return true;
    bool alone = true;
    for (ShmLink* const link : posted_) alone &= link->reclaim();
    posted_.clear();
    return alone;
}

void Run::learn_of_disagreement() {
    try {
        throw_disagreement();
    } catch (...) {
        fail(std::current_exception());
    }
}

void Run::throw_disagreement() const {
    if (!workshop_.arena) return;
    const auto accuser =
        static_cast<int>(workshop_.arena->header().accuser.load(std::memory_order_acquire)) - 1;
    if (accuser < 0 || accuser >= operation().program().size) return;
    const ShmLink* const shm = shared_memory(accuser);
    if (shm == nullptr) return;  // it is told of again once the link is there
    // Operations before the one that ranks disagree on can still be completed.
    const std::optional<Disagreement> found = shm->arena_of_peer()->disagreement();
    const std::optional<Call> last = workshop_.arena->last_collective();
    const bool is_ahead = found && !found->calls[0].is_message() && !found->calls[1].is_message() && last &&
                          last->sequence < found->calls[0].sequence;
    if (!is_ahead) shm->throw_disagreement(request_.call);
}

void Run::look_for_other_calls() {
    throw_disagreement();
    std::vector<Awaited> peers;
    awaited(peers);
    for (const Awaited& awaited : peers) {
        if (const ShmLink* const shm = shared_memory(awaited.peer)) shm->compare(request_.call);
    }
}

}  // namespace collectives
