#include "shm/caster.hpp"

#include <algorithm>

namespace collectives {

std::size_t Caster::write(std::span<ShmLink* const> links, const std::byte* data, std::size_t n) {
    if (n == 0) return 0;
    std::vector<Use>& uses = uses_[next_];
    for (const Use& use : uses) {
        if (!use.link->has_finished(use.line)) return 0;
    }
    for (ShmLink* link : links) {
        if (!link->has_line()) return 0;
    }
    n = std::min(n, own_->geometry().staging_bytes);
    std::byte* slot = own_->cast_slot(next_);
    const Staged staged = stage_(slot, data, n, false);
    uses.clear();
    for (ShmLink* link : links) uses.push_back({link, link->announce(own_->offset_of(slot), n, staged)});
    ShmLink::wake_peers(links);
    next_ = (next_ + 1) % cast_slots;
    return n;
}

}  // namespace collectives
