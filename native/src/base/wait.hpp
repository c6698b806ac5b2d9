// Time and waiting: deadlines, futexes, and how a rank that has nothing to do yields its core.
//
// Invariant: a waiting rank spins only while no awaited rank needs its core, and finally sleeps. So a group
// that waits for one rank uses no processor time, and ranks never keep each other from running.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "base/export.hpp"
#include "base/home.hpp"

namespace collectives {

using Clock = std::chrono::steady_clock;

class COLLECTIVES_API Deadline {
  public:
    Deadline() : at_(Clock::time_point::max()) {}
    // Infinite or very large values mean that the deadline never passes.
    explicit Deadline(double seconds);

    bool passed() const { return at_ != Clock::time_point::max() && Clock::now() >= at_; }
    // Time left, at least zero and at most `cap`.
    std::chrono::nanoseconds left(std::chrono::nanoseconds cap) const;
    Clock::time_point at() const { return at_; }
    void extend(Clock::duration time) {
        if (at_ != Clock::time_point::max()) at_ += time;
    }

  private:
    Clock::time_point at_;
};

COLLECTIVES_API double seconds_since(Clock::time_point start);
// "2.5 s"
COLLECTIVES_API std::string seconds_text(Clock::duration time);

// How often a wait outside an operation checks for signals.
inline constexpr std::chrono::milliseconds look_for_signals{50};

// Sleep until `word` differs from `expected`, futex_wake is called, or `timeout` passes. Works across
// processes.
COLLECTIVES_API void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                                std::chrono::nanoseconds timeout);
COLLECTIVES_API void futex_wake(const std::atomic<std::uint32_t>& word);

// What a waiting rank does after each look that found nothing: it spins while no awaited rank needs this
// core, then yields, then sleeps.
//
// Spinning helps only if the awaited event occurs meanwhile. It cannot if the awaited rank is on the same
// core, which the kernel may bring about at any time. So the number of looks is halved after a wait that
// outlasts the spinning, and doubled after a wait that ends during it. If ranks share cores it is divided by
// four instead, because spinning in vain takes several times as long as yielding in vain, and keeps the core
// from a rank that others may be waiting for. After a yield that took long, another process may have had the
// core for a whole time slice. If this costs more than a third of the time, the rank waits on another core,
// or sleeps instead of yielding for a while, because a rank that is woken gets its core back at once.
class COLLECTIVES_API Backoff {
  public:
    // look_anew: look after a yield, in which others may have had the core. look_late: the yield took long,
    // so the caller finds out whether another program had the core.
    enum class Next : std::uint8_t { look, look_anew, look_late, sleep };

    // `most_spins`: the largest number of looks before the first yield. `home`: the core on which to yield,
    // -1 for any; `shares_home`: whether other ranks have the same home core.
    explicit Backoff(int most_spins, int home = -1, bool shares_home = false)
        : most_spins_(most_spins), spins_(most_spins), shortened_(shares_home ? 4 : 2), home_(home) {}

    // An operation begins in which other ranks may work for `busy` before they yield. They may still be in
    // the previous operation, so its time counts, too.
    void expect(Clock::duration busy) {
        busy_ = std::max(busy, expected_);
        expected_ = busy;
    }

    // The operation begins now. If it is short, its first yield is counted from here, without reading the
    // clock again.
    void begin(Clock::time_point now) {
        begun_ = busy_ == Clock::duration::zero() ? now : Clock::time_point{};
    }

    // From now on the awaited peer may be on another host, and the network needs the cores, too.
    void expect_network() { network_ = true; }

    // The awaited event has occurred.
    void reset();

    // Spins or yields once and asks the caller to look again, or to sleep. `here`: an awaited rank needs this
    // core.
    Next idle(bool here);

    // Whether there were fewer than `looks` looks so far, and the next step is to spin.
    bool spins_within(int looks, bool here) const { return !here && looks_ < std::min(looks, spins_); }

    // When the last yield that took long began.
    Clock::time_point lost_since() const { return lost_since_; }
    // Reports that another program had the core during that yield. `refuge`: a core that may be free; -1 if
    // there is none.
    void preempted(int refuge);
    // The duration from which a yield counts as long.
    Clock::duration slow() const;
    // When the last yield ended, or when the clock was read later.
    Clock::time_point looked() const { return looked_; }

  private:
    Next yield();

    int most_spins_;
    int spins_;
    int shortened_;  // divides the number of looks after a wait that outlasted the spinning
    int looks_ = 0;
    bool in_vain_ = false;  // this wait has outlasted the spinning
    bool yielded_ = false;
    int yields_ = 0;
    Clock::time_point begun_{};  // until the first yield of a short operation; zero otherwise
    Clock::time_point yielding_since_{};
    Clock::time_point looked_{};  // after the last yield; looks since then count as part of the next yield
    Clock::time_point lost_since_{};
    Clock::time_point preempted_at_{};
    Clock::duration busy_{};
    Clock::duration expected_{};
    bool network_ = false;
    Clock::time_point sleep_until_{};
    Home home_;
};

}  // namespace collectives
