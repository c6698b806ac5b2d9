#include "shm/places.hpp"

#include <algorithm>

namespace collectives {

Places::Places(Arena& own, int rank, Arena& theirs, int peer) {
    // Places in the lower rank's arena have the lower numbers. In the beginning each side owns the places in
    // its own arena.
    const std::size_t first = rank < peer ? 0 : places_per_link;
    for (std::size_t i = 0; i < places_per_link; ++i) {
        at_[first + i] = own.place(peer, i);
        at_[places_per_link - first + i] = theirs.place(rank, i);
        ours_.push_back(static_cast<std::uint32_t>(first + i));
    }
    ours_.reserve(at_.size());
}

std::uint32_t Places::give() {
    const std::uint32_t number = ours_.back();
    ours_.pop_back();
    return number;
}

bool Places::may_come(std::uint32_t number) const {
    return number < at_.size() && std::ranges::find(ours_, number) == ours_.end();
}

}  // namespace collectives
