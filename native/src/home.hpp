// The core on which a rank belongs where ranks outnumber cores.
//
// Ranks that hand a core to each other by yielding are never idle, so the kernel sees nothing to balance and
// leaves three of them on one core and one on another for many operations. Invariant: a thread's affinity is
// the same after a call as before it: it is moved, not bound.
#pragma once

#include <chrono>

namespace collectives {

class Home {
  public:
    using Clock = std::chrono::steady_clock;

    // `core`: -1 for none.
    explicit Home(int core) : core_(core) {}

    // Move the calling thread there if it is elsewhere, at most once in a millisecond. `robbed`: it has just
    // lost a time slice to somebody. Where that happens at home, the kernel's choices are better than ours
    // for a while, and for longer if it happens again.
    void seek(Clock::time_point now, bool robbed);

  private:
    void move();

    int core_;
    Clock::time_point next_{};
    Clock::duration avoided_{};
};

}  // namespace collectives
