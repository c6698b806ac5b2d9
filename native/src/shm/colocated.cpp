#include "shm/colocated.hpp"

namespace collectives {

std::vector<std::shared_ptr<Arena>> Colocated::arenas(const Request& request) {
    std::vector<std::shared_ptr<Arena>> found;
    const Program& program = request.operation->program();
    for (int r = 0; r < program.size; ++r) {
        found.push_back(r == program.rank ? arena() : link(r)->arena_of_peer());
    }
    return found;
}

void Colocated::wake(std::span<const int> peers) {
    woken_.clear();
    for (const int peer : peers) woken_.push_back(link(peer));
    ShmLink::wake_peers(woken_);
}

void Colocated::look_for_other_calls(const Request& request, std::span<const Awaited> awaited) {
    if (const std::optional<int> by = memory()->accuser()) link(*by)->throw_disagreement(request.call);
    for (const Awaited& one : awaited) {
        if (const ShmLink* const to = link(one.peer)) to->compare(request.call);
    }
}

void Colocated::abandon(const Request& request) {
    for (const int peer : request.operation->program().peers) {
        if (ShmLink* const to = link(peer)) to->abandon();
    }
}

Colocated& colocated_of(Surroundings& surroundings) {
    return *surroundings.commons.get<Colocated>([&] { return new Colocated(surroundings); });
}

}  // namespace collectives
