// Who had a core while a rank that yielded there did not get it back, and where to go if it was a stranger.
//
// The rank itself cannot see it. If others of the group have had the core, one of them has been seen there
// since, or is at work of its own.
#pragma once

#include <vector>

#include "base/wait.hpp"
#include "shm/presence.hpp"

namespace collectives {

class LostSlice {
  public:
    LostSlice(int core, Clock::time_point since, Clock::time_point now)
        : core_(core), since_(since), now_(now), seen_(since) {}

    // What another rank of the group tells.
    void ask(const Presence& other);

    // Whether one that was there has been robbed of it meanwhile.
    bool is_told() const { return told_; }
    // How long nobody of the group has been seen there.
    Clock::duration unseen() const { return now_ - seen_; }
    // Whether that does not matter: this rank, which is waited for, was at work of its own most of the time.
    bool is_excused(const Presence& awaited) const { return 2 * awaited.own_work(seen_, now_) > unseen(); }

    // Whether one that was asked was at work of its own on this core most of the time.
    bool is_excused_here() const;

    // Where fewest are of those cores on which ranks that were asked belong and where none of them has been
    // robbed lately, nor `own`; -1: nowhere.
    int refuge(const Presence& own) const;

  private:
    int core_;
    Clock::time_point since_;
    Clock::time_point now_;
    Clock::time_point seen_;
    bool told_ = false;
    std::vector<const Presence*> asked_;
};

}  // namespace collectives
