// The record that each rank publishes for ranks with which it shares cores: its core, when it last had the
// core, and when it was busy.
//
// Invariant: each rank writes only its own record. If its values are inconsistent at some moment, a rank
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
    // The rank's home core, -1 for none. Set before other ranks read the record.
    int home() const { return home_; }
    void settle(int home);
    // The core on which the rank runs, as far as it knows. Waiting ranks read this often, so the cache line
    // is written only when the core changes.
    int core() const { return core_.load(std::memory_order_relaxed); }
    void set_core(int core);

    // An operation begins (`enter`), or has ended (`leave`). Between operations the rank is busy with other
    // work.
    void enter(Clock::time_point now) { entered_.store(ticks(now), std::memory_order_relaxed); }
    void leave();
    // The rank waits, and has its core at this moment.
    void mark_running(Clock::time_point now) { seen_.store(ticks(now), std::memory_order_relaxed); }
    // When the rank was last known to have its core.
    Clock::time_point last_seen() const;
    // For how long after `since` the rank was busy with other work, the last time that it was busy.
    Clock::duration busy_time(Clock::time_point since, Clock::time_point now) const;

    // Record that another program had that core until `now` while the rank needed it. Two cores are kept.
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
    std::array<Preemption, 2> preemptions_;  // the latest first
};

}  // namespace collectives
