// What ranks that share cores tell each other in shared memory: where each is, and what of its time is its
// own.
//
// Invariant: each rank writes only its own; where the figures of one moment do not fit together, a rank waits
// a little less well for a while, and nothing else happens.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/cpu.hpp"
#include "base/wait.hpp"

namespace collectives {

class Presence {
  public:
    // The core on which the rank belongs, -1 for none. Said before others may look.
    int home() const { return home_; }
    void settle(int home);
    // The core that it is on, as far as it knows. Ranks that wait for it look each time, so the line is not
    // written unless it changes.
    int core() const { return core_.load(std::memory_order_relaxed); }
    void tell_core(int core);

    // An operation begins, or the last one has ended: the rank's time is its own then.
    void enter(Clock::time_point now) { entered_.store(ticks(now), std::memory_order_relaxed); }
    void leave();
    // It waits, and has its core just now.
    void look_up(Clock::time_point now) { seen_.store(ticks(now), std::memory_order_relaxed); }
    // When it was last known to have its core.
    Clock::time_point last_seen() const;
    // For how long since then its time was its own, the last time that it was.
    Clock::duration own_work(Clock::time_point since, Clock::time_point now) const;

    // Others have had that core up to then, for a while, when the rank needed it. The last of two cores are
    // told.
    void tell_robbed(int core, Clock::time_point now);
    bool was_robbed(int core, Clock::time_point since) const;

  private:
    using Ticks = Clock::rep;
    struct Robbery {
        std::atomic<std::int32_t> core;
        std::atomic<Ticks> at;
    };

    static Ticks ticks(Clock::time_point at) { return at.time_since_epoch().count(); }

    std::int32_t home_;
    alignas(cache_line) std::atomic<std::int32_t> core_;
    alignas(cache_line) std::atomic<Ticks> entered_;
    std::atomic<Ticks> left_;  // before `entered_` while in an operation
    std::atomic<Ticks> seen_;
    std::array<Robbery, 2> robberies_;  // the last first
};

}  // namespace collectives
