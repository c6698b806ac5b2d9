#include "core/lost_slice.hpp"

#include <algorithm>

namespace collectives {

using namespace std::chrono_literals;

namespace {
constexpr auto lately = 300ms;
}

void LostSlice::add(const Presence& other) {
    others_.push_back(&other);
    if (other.core() != core_) return;
    seen_ = std::max(seen_, std::min(other.last_seen(), now_));
    confirmed_ = confirmed_ || other.was_preempted(core_, since_);
}

bool LostSlice::is_excused_here() const {
    return std::any_of(others_.begin(), others_.end(),
                       [&](const Presence* one) { return one->core() == core_ && is_excused(*one); });
}

int LostSlice::refuge(const Presence& own) const {
    int best = -1;
    std::ptrdiff_t fewest = 0;
    for (const Presence* const owner : others_) {
        const int core = owner->home();
        const auto was_preempted = [&](const Presence* one) {
            return one->was_preempted(core, now_ - lately);
        };
        if (core < 0 || core == core_ || was_preempted(&own)) continue;
        if (std::any_of(others_.begin(), others_.end(), was_preempted)) continue;
        const auto there = std::count_if(others_.begin(), others_.end(),
                                         [&](const Presence* one) { return one->core() == core; });
        if (best >= 0 && there >= fewest) continue;
        best = core;
        fewest = there;
    }
    return best;
}

}  // namespace collectives
