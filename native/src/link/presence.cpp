#include "link/presence.hpp"

#include <algorithm>

namespace collectives {

void Presence::settle(int home) {
    home_ = home;
    set_core(home);
}

void Presence::set_core(int core) {
    if (core_.load(std::memory_order_relaxed) != core) core_.store(core, std::memory_order_relaxed);
}

void Presence::leave() {
    // The time of the last wait is used instead of reading the clock, since little is done after it.
    const Ticks entered = entered_.load(std::memory_order_relaxed);
    left_.store(std::max(entered, seen_.load(std::memory_order_relaxed)), std::memory_order_relaxed);
}

Clock::time_point Presence::last_seen() const {
    const Ticks entered = entered_.load(std::memory_order_relaxed);
    return Clock::time_point(Clock::duration(std::max(entered, seen_.load(std::memory_order_relaxed))));
}

Clock::duration Presence::busy_time(Clock::time_point since, Clock::time_point now) const {
    const Ticks entered = entered_.load(std::memory_order_relaxed);
    const Ticks left = left_.load(std::memory_order_relaxed);
    const Ticks end = entered > left ? entered : ticks(now);
    return Clock::duration(std::max<Ticks>(end - std::max(left, ticks(since)), 0));
}

void Presence::note_preemption(int core, Clock::time_point now) {
    auto& [last, before] = preemptions_;
    if (last.core.load(std::memory_order_relaxed) != core) {
        before.core.store(last.core.load(std::memory_order_relaxed), std::memory_order_relaxed);
        before.at.store(last.at.load(std::memory_order_relaxed), std::memory_order_relaxed);
        last.core.store(core, std::memory_order_relaxed);
    }
    last.at.store(ticks(now), std::memory_order_relaxed);
}

bool Presence::was_preempted(int core, Clock::time_point since) const {
    return std::any_of(preemptions_.begin(), preemptions_.end(), [&](const Preemption& preemption) {
        return preemption.core.load(std::memory_order_relaxed) == core &&
               preemption.at.load(std::memory_order_relaxed) > ticks(since);
    });
}

}  // namespace collectives
