// A rank's home core, to which it returns if a host has at least as many ranks as cores, and the core on
// which it runs while other programs use its home core.
//
// Ranks that yield a core to each other are never idle, so the kernel does not balance them: for many
// operations it may leave three of four ranks on one of two cores, or two ranks on one core and another core
// unused. Invariant: a call does not change a thread's affinity: the thread is moved, not bound.
#pragma once

#include <chrono>

#include "base/export.hpp"

namespace collectives {

class COLLECTIVES_API Home {
  public:
    using Clock = std::chrono::steady_clock;

    // `core`: -1 for none.
    explicit Home(int core) : core_(core) {}

    // Moves the calling thread to the core on which it belongs now, if it is on another one, at most once in
    // a millisecond.
    void seek(Clock::time_point now);

    // Reports that other programs have had the core of the calling thread. If this is the home core, the
    // thread belongs on the core `refuge` for a while; if `refuge` is -1, the kernel chooses. Returns whether
    // the thread has another core to run on.
    bool flee(Clock::time_point now, int refuge);
    // The time from which the thread may return to its home core; in the past if it may now.
    Clock::time_point away_until() const { return away_until_; }

  private:
    bool move(int core);

    int core_;
    int refuge_ = -1;
    Clock::time_point moved_{};
    Clock::time_point away_until_{};
};

}  // namespace collectives
