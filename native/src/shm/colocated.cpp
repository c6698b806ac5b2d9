#include "shm/colocated.hpp"

namespace collectives {

void Colocated::share(std::shared_ptr<Arena> own) {
    arena = std::move(own);
    caster = std::make_unique<Caster>(arena);
}

void Colocated::close() {
    pool.reset();
    boards.clear();
    caster.reset();
    arena.reset();
}

std::vector<std::shared_ptr<Arena>> Colocated::arenas(const Request& request) const {
    std::vector<std::shared_ptr<Arena>> found;
    const Program& program = request.operation->program();
    for (int r = 0; r < program.size; ++r) {
        found.push_back(r == program.rank ? arena : shm_link(request, r)->arena_of_peer());
    }
    return found;
}

void Colocated::wake(const Request& request, std::span<const int> peers) {
    woken_.clear();
    for (const int peer : peers) woken_.push_back(shm_link(request, peer));
    ShmLink::wake_peers(woken_);
}

void Colocated::announce(const Request& request) {
    if (!arena) return;
    arena->publish_call(request.call);
    if (arena->header().accuser.load(std::memory_order_relaxed) != 0) throw_disagreement(request);
}

void Colocated::throw_disagreement(const Request& request) const {
    if (!arena) return;
    const auto accuser = static_cast<int>(arena->header().accuser.load(std::memory_order_acquire)) - 1;
    if (accuser < 0 || accuser >= request.operation->program().size) return;
    const ShmLink* const link = shm_link(request, accuser);
    if (link == nullptr) return;  // it is told of again once the link is there
    // Operations before the one that ranks disagree on can still be completed.
    const std::optional<Disagreement> found = link->arena_of_peer()->disagreement();
    const std::optional<Call> last = arena->last_collective();
    const bool is_ahead = found && !found->calls[0].is_message() && !found->calls[1].is_message() && last &&
                          last->sequence < found->calls[0].sequence;
    if (!is_ahead) link->throw_disagreement(request.call);
}

void Colocated::look_for_other_calls(const Request& request, std::span<const Awaited> awaited) const {
    throw_disagreement(request);
    for (const Awaited& one : awaited) {
        if (const ShmLink* const link = shm_link(request, one.peer)) link->compare(request.call);
    }
}

void Colocated::abandon(const Request& request, bool shown) {
    for (const int peer : request.operation->program().peers) {
        if (ShmLink* const link = shm_link(request, peer)) link->abandon(shown);
    }
}

}  // namespace collectives
