// What ranks that share cores publish about themselves: their core, when they had it, and when they were
// busy.
//
// Invariant: each rank writes only its own record. If the figures of one moment do not fit together, a rank
// waits less efficiently for a while, and nothing else happens.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/cpu.hpp"
#include "base/export.hpp"
#include "base/wait.hpp"

namespace collectives {

class COLLECTIVES_API Presence {
  public:
    // The core on which the rank belongs, -1 for none. Set before others may look.
    int home() const { return home_; }
    void settle(int home);
    // The core that it is on, as far as it knows. Ranks that wait for it look often, so the line is written
    // only when the core changes.
    int core() const { return core_.load(std::memory_order_relaxed); }
    void set_core(int core);

    // An operation begins, or the last one has ended: the rank is busy with other work then.
    void enter(Clock::time_point now) { entered_.store(ticks(now), std::memory_order_relaxed); }
    void leave();
    // It waits, and has its core at this moment.
    void mark_running(Clock::time_point now) { seen_.store(ticks(now), std::memory_order_relaxed); }
    // When it was last known to have its core.
    Clock::time_point last_seen() const;
    // For how long since then it was busy with other work, the last time that it was.
    Clock::duration busy_time(Clock::time_point since, Clock::time_point now) const;

    // Other programs had that core up to then while the rank needed it. The last two cores are kept.
    void note_preemption(int core, Clock::time_point now);
    bool was_preempted(int core, Clock::time_point since) const;

  private:
    using Ticks = Clock::rep;
    struct Preemption {
        std::atomic<std::int32_t> core;
        std::atomic<Ticks> at;
    };

    static Ticks ticks(Clock::time_point at) { return at.time_since_epoch().count(); }

    std::int32_t home_;
    alignas(cache_line) std::atomic<std::int32_t> core_;
    alignas(cache_line) std::atomic<Ticks> entered_;
    std::atomic<Ticks> left_;  // before `entered_` while in an operation
    std::atomic<Ticks> seen_;
    std::array<Preemption, 2> preemptions_;  // the last first
};

}  // namespace collectives
