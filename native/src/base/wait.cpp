#include "base/wait.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <utility>

#include "base/cpu.hpp"

namespace collectives {

using namespace std::chrono_literals;

namespace {
constexpr auto yield_for = 500us;  // then sleep: compared with a longer wait, a wake-up takes little time
constexpr auto yield_for_network = 100us;
constexpr auto slow_yield = 1ms;  // in a longer yield, another process has had a time slice
constexpr auto sleep_for = 20ms;  // time without yielding if other programs have the core
// If less than a third of the time is lost, staying is better than sharing another core, or sleeping. So the
// time without losses must be at least so many times as long as the lost time.
constexpr int worth_it = 2;
constexpr int fewest_spins = 32;
// A limit, because a rank that uses up its time slice by yielding has to wait for the next slice.
constexpr int most_yields = 1000;
constexpr double never = 1e9;  // seconds
}  // namespace

Deadline::Deadline(double seconds) : at_(Clock::time_point::max()) {
    if (seconds < never) {
        at_ = Clock::now() +
              std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    }
}

std::chrono::nanoseconds Deadline::left(std::chrono::nanoseconds cap) const {
    if (at_ == Clock::time_point::max()) return cap;
    return std::clamp<std::chrono::nanoseconds>(at_ - Clock::now(), 0ns, cap);
}

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string seconds_text(Clock::duration time) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.1f s", std::chrono::duration<double>(time).count());
    return text.data();
}

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::chrono::nanoseconds timeout) {
    timespec relative{};
    relative.tv_sec = timeout.count() / 1'000'000'000;
    relative.tv_nsec = timeout.count() % 1'000'000'000;
    ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &relative, nullptr, 0);
}

void futex_wake(const std::atomic<std::uint32_t>& word) {
    ::syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void Backoff::reset() {
    if (in_vain_) {
        spins_ = std::max(spins_ / shortened_, std::min(fewest_spins, most_spins_));
    } else if (looks_ > 0) {
        spins_ = std::min(spins_ * 2, most_spins_);
    }
    looks_ = 0;
    in_vain_ = yielded_ = false;
    yields_ = 0;
}

Backoff::Next Backoff::idle(bool here) {
    if (here) return yield();
    if (looks_ < spins_) {
        ++looks_;
        pause();
        return Next::look;
    }
    in_vain_ = true;
    return yield();
}

Backoff::Next Backoff::yield() {
    if (!yielded_) {
        const auto begun = std::exchange(begun_, {});
        yielding_since_ = looked_ = begun != Clock::time_point{} ? begun : Clock::now();
    }
    yielded_ = true;
    const auto before = looked_;
    if (before < sleep_until_) return Next::sleep;
    const Clock::duration most = network_ ? yield_for_network : yield_for + busy_;
    if (++yields_ > most_yields || before - yielding_since_ > most) return Next::sleep;
    ::sched_yield();
    looked_ = Clock::now();
    if (looked_ - before > slow()) {
        lost_since_ = before;
        return Next::look_late;
    }
    home_.seek(looked_);
    return Next::look_anew;
}

Clock::duration Backoff::slow() const { return slow_yield + busy_; }

void Backoff::preempted(int refuge) {
    const auto lost = looked_ - lost_since_;
    const auto calm = lost_since_ - std::max({preempted_at_, sleep_until_, home_.away_until()});
    preempted_at_ = looked_;
    if (calm > worth_it * lost || home_.flee(looked_, refuge)) return;
    sleep_until_ = looked_ + sleep_for;
}

}  // namespace collectives
