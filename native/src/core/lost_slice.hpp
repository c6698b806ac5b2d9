// Whether a rank that yielded was preempted by another program, and to which core it may move then.
//
// The rank cannot see this directly. If another rank of the group had the core, that rank has published
// meanwhile that it had the core, or that it was busy with other work.
#pragma once

#include <vector>

#include "base/wait.hpp"
#include "link/presence.hpp"

namespace collectives {

class LostSlice {
  public:
    LostSlice(int core, Clock::time_point since, Clock::time_point now)
        : core_(core), since_(since), now_(now), seen_(since) {}

    // Adds another rank of the group.
    void add(const Presence& other);

    // Whether another rank has been preempted on this core meanwhile.
    bool is_confirmed() const { return confirmed_; }
    // For how long no rank of the group has been seen there.
    Clock::duration unseen() const { return now_ - seen_; }
    // Whether the lost time does not matter, because the awaited rank was busy with other work most of it.
    bool is_excused(const Presence& awaited) const { return 2 * awaited.busy_time(seen_, now_) > unseen(); }

    // Whether another rank was busy with other work on this core most of the time.
    bool is_excused_here() const;

    // The core to which this rank may move: among the other ranks' home cores on which no rank has been
    // preempted lately, the one with the fewest ranks. -1: none.
    int refuge(const Presence& own) const;

  private:
    int core_;
    Clock::time_point since_;
    Clock::time_point now_;
    Clock::time_point seen_;
    bool confirmed_ = false;
    std::vector<const Presence*> others_;
};

}  // namespace collectives
