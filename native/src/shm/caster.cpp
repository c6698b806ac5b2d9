#include "shm/caster.hpp"

#include <algorithm>

#include "base/mechanisms.hpp"
#include "shm/memory.hpp"

namespace collectives {

bool Caster::shares(const Target& target, ShmLink& link, const std::byte* data, std::uint64_t length) const {
    return !target.in_place && length > Line::inline_bytes && uses(Mechanism::multicast) &&
           link.stages(data, static_cast<std::size_t>(length)) && !link.changes_places();
}

void Caster::write(std::span<const Target> targets, const std::byte* data, std::uint64_t ready,
                   std::uint64_t length) {
    sharing_.clear();
    for (const Target& target : targets) {
        ShmLink& link = *memory_.link(target.peer);
        if (shares(target, link, data, length)) sharing_.push_back(&link);
    }
    if (sharing_.size() < 2) sharing_.clear();
    if (!sharing_.empty()) {
        const std::uint64_t from = sharing_.front()->written();
        stage(sharing_, data + from, static_cast<std::size_t>(ready - from));
    }
    // Sleeping peers are woken at the end, so that the cache lines of all peers are fetched at the same time.
    woken_.clear();
    for (const Target& target : targets) {
        ShmLink* const link = memory_.link(target.peer);
        if (std::find(sharing_.begin(), sharing_.end(), link) != sharing_.end()) {
            *target.written = link->written();
            continue;
        }
        const auto n = static_cast<std::size_t>(ready - *target.written);
        const std::size_t put =
            target.in_place ? link->announce_posted(n) : link->put(data + *target.written, n);
        *target.written += put;
        if (put > 0 || length == 0) woken_.push_back(link);
    }
    if (!woken_.empty()) ShmLink::wake_peers(woken_);
}

void Caster::stage(std::span<ShmLink* const> links, const std::byte* data, std::size_t n) {
    if (n == 0) return;
    std::vector<Use>& uses = uses_[next_];
    for (const Use& use : uses) {
        if (!use.link->has_finished(use.line)) return;
    }
    for (ShmLink* link : links) {
        if (!link->has_line()) return;
    }
    Arena& own = *memory_.arena();
    n = std::min(n, own.geometry().staging_bytes);
    std::byte* slot = own.cast_slot(next_);
    const Staged staged = stage_(slot, data, n, false);
    uses.clear();
    for (ShmLink* link : links) uses.push_back({link, link->announce(own.offset_of(slot), n, staged)});
    ShmLink::wake_peers(links);
    next_ = (next_ + 1) % cast_slots;
}

}  // namespace collectives
