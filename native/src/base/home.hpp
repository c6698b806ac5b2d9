// The core on which a rank belongs where ranks leave no core to others, and where it goes while others are
// there.
//
// Ranks that hand a core to each other by yielding are never idle, so the kernel sees nothing to balance and
// leaves three of them on one core and one on another for many operations, or two of as many ranks as cores
// on one, and none on another. Invariant: a thread's affinity is the same after a call as before it: it is
// moved, not bound.
#pragma once

#include <chrono>

namespace collectives {

class Home {
  public:
    using Clock = std::chrono::steady_clock;

    // `core`: -1 for none.
    explicit Home(int core) : core_(core) {}

    // Move the calling thread to where it belongs just now if it is elsewhere, at most once in a millisecond.
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
