// The core to which a rank returns where there are as many ranks as cores or more, and where it goes while
// other programs have that core.
//
// Ranks that yield a core to each other are never idle, so the kernel balances nothing: it leaves three of
// them on one core and one on another for many operations, or two of as many ranks as cores on one core and
// none on another. Invariant: a thread's affinity is the same after a call as before it. It is moved, not
// bound.
#pragma once

#include <chrono>

#include "base/export.hpp"

namespace collectives {

class COLLECTIVES_API Home {
  public:
    using Clock = std::chrono::steady_clock;

    // `core`: -1 for none.
    explicit Home(int core) : core_(core) {}

    // Moves the calling thread to where it belongs at this time if it is elsewhere, at most once in a
    // millisecond.
    void seek(Clock::time_point now);

    // Others have had the core that the calling thread is on. If that is home, the thread belongs on `refuge`
    // for a while; if that is -1, the kernel chooses a core meanwhile. Whether there is somewhere to go.
    bool flee(Clock::time_point now, int refuge);
    // When it may go home, or could the last time.
    Clock::time_point away_until() const { return away_until_; }

  private:
    bool move(int core);

    int core_;
    int refuge_ = -1;
    Clock::time_point moved_{};
    Clock::time_point away_until_{};
};

}  // namespace collectives
