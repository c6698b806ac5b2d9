// The part of the schedule engine for results that are written straight to the peers' memory, see Relay.
#include <algorithm>

#include "base/copy.hpp"
#include "base/mechanisms.hpp"
#include "schedule/schedule_task.hpp"

namespace collectives {

void ScheduleTask::post_receptions() {
    for (const Program::Reception& reception : program().receptions) {
        const Step& step = steps()[reception.step];
        Link* const from = request_->links[static_cast<std::size_t>(reception.peer)];
        if (from == nullptr) continue;
        const std::uint64_t tag = post_tag(request_->call, reception.ordinal);
        if (from->post_recv({tag, at(step.dst), step.length, reception.replaces})) posted_.push_back(from);
    }
}

bool ScheduleTask::relays(const Step& step) const {
    const auto& relay = program().relay;
    return relay && relay->reduction == index_of(step) && !is_in_sections();
}

void ScheduleTask::reduce_and_relay(const Step& step, std::uint64_t begin, std::size_t n) {
    std::byte* const dst = at(step.dst) + begin;
    if (!relay_.has_begun()) {
        relay_.begin(*program().relay, request_->call, request_->links, step.length);
    }
    if (!relay_.is_used()) return apply(step, dst, n, stores(step));
    places_.assign(1, dst);
    relay_.find_places(begin, places_);
    if (!is_streamed(step)) {
        apply(step, dst, n, Stores::cached);
        for (std::size_t i = 1; i < places_.size(); ++i) copy_bytes(places_[i], dst, n);
        return;
    }
    if (spread_streaming(step, n)) return;
    // Reduce to a buffer that stays in the caches, and copy from there; the destinations do not stay there.
    if (!relayed_) {
        relayed_ = std::make_unique_for_overwrite<std::byte[]>(std::max(settings_.slice, block_bytes));
    }
    apply(step, relayed_.get(), n, Stores::cached);
    for (std::byte* const place : places_) copy_streaming(place, relayed_.get(), n);
}

bool ScheduleTask::spread_streaming(const Step& step, std::size_t n) const {
    const SpreadFn spread = operation().spread();
    if (spread == nullptr || !collectives::uses(Mechanism::spread)) return false;
    const auto behind_line = [](const std::byte* place) {
        return reinterpret_cast<std::uintptr_t>(place) % cache_line;
    };
    const bool alike = std::ranges::all_of(
        places_, [&](const std::byte* place) { return behind_line(place) == behind_line(places_.front()); });
    if (!alike) return false;
    spread(places_.data(), places_.size(), operands_.data(), operands_.size(), n / operation().unit(),
           step.final ? operation().scale() : 1.0);
    return true;
}

bool ScheduleTask::is_relayed(const Step& step, int peer) const {
    const auto& relay = program().relay;
    return relay && relay->send == index_of(step) && relay_.reaches(peer);
}

}  // namespace collectives
