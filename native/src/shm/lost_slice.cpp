#include "shm/lost_slice.hpp"

#include <algorithm>

namespace collectives {

using namespace std::chrono_literals;

namespace {
constexpr auto lately = 300ms;
}

void LostSlice::ask(const Presence& other) {
    asked_.push_back(&other);
    if (other.core() != core_) return;
    seen_ = std::max(seen_, std::min(other.last_seen(), now_));
    told_ = told_ || other.was_robbed(core_, since_);
}

bool LostSlice::is_excused_here() const {
    return std::any_of(asked_.begin(), asked_.end(),
                       [&](const Presence* one) { return one->core() == core_ && is_excused(*one); });
}

int LostSlice::refuge(const Presence& own) const {
    int best = -1;
    std::ptrdiff_t fewest = 0;
    for (const Presence* const owner : asked_) {
        const int core = owner->home();
        const auto was_robbed = [&](const Presence* one) { return one->was_robbed(core, now_ - lately); };
        if (core < 0 || core == core_ || was_robbed(&own)) continue;
        if (std::any_of(asked_.begin(), asked_.end(), was_robbed)) continue;
        const auto there = std::count_if(asked_.begin(), asked_.end(),
                                         [&](const Presence* one) { return one->core() == core; });
        if (best >= 0 && there >= fewest) continue;
        best = core;
        fewest = there;
    }
    return best;
}

}  // namespace collectives
