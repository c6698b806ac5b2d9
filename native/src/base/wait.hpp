// Time and waiting: deadlines, futexes, and how a rank that has nothing to do yields its core.
//
// Invariant: a waiting rank spins only while there is a core for every rank, and sleeps in the end, so a
// group that waits for one rank uses no processor time and ranks never keep each other from running.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/export.hpp"
#include "base/home.hpp"

namespace collectives {

using Clock = std::chrono::steady_clock;

class COLLECTIVES_API Deadline {
  public:
    Deadline() : at_(Clock::time_point::max()) {}
    // Infinite or absurdly large values mean never.
    explicit Deadline(double seconds);

    bool passed() const { return at_ != Clock::time_point::max() && Clock::now() >= at_; }
    // Time left, at least zero and at most `cap`.
    std::chrono::nanoseconds left(std::chrono::nanoseconds cap) const;
    Clock::time_point at() const { return at_; }

  private:
    Clock::time_point at_;
};

COLLECTIVES_API double seconds_since(Clock::time_point start);

// How often a wait outside an operation looks whether a signal has come.
inline constexpr std::chrono::milliseconds look_for_signals{50};

// Sleep until *word differs from `expected`, somebody wakes it, or `timeout` passes. Works across processes.
COLLECTIVES_API void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                                std::chrono::nanoseconds timeout);
COLLECTIVES_API void futex_wake(const std::atomic<std::uint32_t>& word);

// The ladder of one idle period: what to do after the n-th look that found nothing.
//
// Spin while nobody that is waited for needs this core, then yield, then sleep. Spinning pays only if what is
// waited for comes meanwhile, which it cannot where two ranks have ended up on one core unnoticed: periods
// that outlast the spinning halve it, those that end in it double it. Where ranks share cores they quarter
// it, so that it pays at least twice for each time that it does not: to look in vain takes several times as
// long as to yield in vain, and keeps the core from a rank that may be waited for in turn. A yield that took
// long may have handed a whole time slice to some other process. If that costs more than a third of the time,
// the rank waits on another core, or sleeps instead of yielding for a while: a sleeper that is woken gets its
// core back at once.
class COLLECTIVES_API Backoff {
  public:
    // Anew: others have had the core; late: for a long time, so the caller finds out whether it was
    // preempted.
    enum class Next : std::uint8_t { look, look_anew, look_late, sleep };

    // `most_spins`: looks before the first yield where spinning has proved useful. `home`: the core on which
    // to yield, -1 for any; whether others share it.
    explicit Backoff(int most_spins, int home = -1, bool shares_home = false)
        : most_spins_(most_spins), spins_(most_spins), shortened_(shares_home ? 4 : 2), home_(home) {}

    // An operation begins in which other ranks may have work for `busy` before they yield. They may still be
    // in the operation before.
    void expect(Clock::duration busy) {
        busy_ = std::max(busy, expected_);
        expected_ = busy;
    }

    // The operation begins now. The first yield of a short one counts from here, without another look at the
    // clock.
    void begin(Clock::time_point now) {
        begun_ = busy_ == Clock::duration::zero() ? now : Clock::time_point{};
    }

    // From now on the awaited peer may be on another host, and the network needs the cores, too.
    void expect_network() { network_ = true; }

    // What was waited for has come.
    void reset();

    // Spins or yields once and asks the caller to look again, or to sleep. `here`: an awaited rank needs this
    // core.
    Next idle(bool here);

    // Whether it has looked at most so many times and would only spin.
    bool spins_within(int looks, bool here) const { return !here && looks_ < std::min(looks, spins_); }

    // After a yield that took long: when it began; and that another program had the core. `refuge`: a core
    // that may be free; -1 if there is none.
    Clock::time_point lost_since() const { return lost_since_; }
    void preempted(int refuge);
    // How long a yield must take for that.
    Clock::duration slow() const;
    // When the last yield ended, or a later look at the clock.
    Clock::time_point looked() const { return looked_; }

  private:
    Next yield();

    int most_spins_;
    int spins_;
    int shortened_;  // to a part in so many, after looking in vain
    int looks_ = 0;
    bool in_vain_ = false;  // spun for as long as seemed useful
    bool yielded_ = false;
    int yields_ = 0;
    Clock::time_point begun_{};  // until the first yield of a short operation; zero otherwise
    Clock::time_point yielding_since_{};
    Clock::time_point looked_{};  // after the last yield; a look since then counts as part of the next one
    Clock::time_point lost_since_{};
    Clock::time_point preempted_at_{};
    Clock::duration busy_{};
    Clock::duration expected_{};
    bool network_ = false;
    Clock::time_point sleep_until_{};
    Home home_;
};

}  // namespace collectives
