// A long wait in one operation: its deadline, and what a waiting rank reports to the others and asks them.
//
// Invariant: `look` is called at least every 50 ms. Time in which the process did not run, since it was
// stopped or the machine was suspended, does not count. Reports are sent once in a wait, at a moment that
// differs between ranks, so that one rank's report often spares the others theirs.
#pragma once

#include "core/health.hpp"

namespace collectives {

class Vigil {
  public:
    Vigil() = default;
    // The wait begins. `rank`: this one.
    Vigil(double timeout, int rank, Clock::time_point now);

    // `call`: the collective in which this rank waits; null if it waits in another call.
    void look(Health& health, const Call* call, std::uint32_t fingerprint, Clock::time_point now);
    // The caller of `look` was busy until now, which counts.
    void rest(Clock::time_point now) { looked_ = now; }

    Clock::time_point began() const { return began_; }
    const Deadline& deadline() const { return deadline_; }

  private:
    Clock::time_point began_{};
    Clock::time_point looked_{};
    Deadline deadline_;
    Clock::duration jitter_{};      // differs between ranks
    Clock::duration asks_after_{};  // before the deadline, so that the error can name who is late
    bool reported_ = false;
    bool asked_ = false;
    bool asked_to_warn_ = false;
    bool warned_ = false;
};

}  // namespace collectives
