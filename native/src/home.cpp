#include "home.hpp"

#include <sched.h>

#include <algorithm>

namespace collectives {

using namespace std::chrono_literals;

namespace {
constexpr auto between_moves = 1ms;
constexpr auto avoided_first = 50ms;
constexpr auto avoided_most = 2s;
constexpr auto again_within = 100ms;
}  // namespace

void Home::seek(Clock::time_point now, bool robbed) {
    if (core_ < 0 || now < next_) return;
    const bool here = ::sched_getcpu() == core_;
    if (here && robbed) {
        const bool again = now - next_ < again_within;
        avoided_ = again ? std::min<Clock::duration>(avoided_ * 2, avoided_most) : avoided_first;
        next_ = now + avoided_;
    } else if (!here) {
        next_ = now + between_moves;
        move();
    }
}

void Home::move() {
    cpu_set_t allowed;
    cpu_set_t home;
    CPU_ZERO(&home);
    CPU_SET(core_, &home);
    if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || !CPU_ISSET(core_, &allowed) ||
        ::sched_setaffinity(0, sizeof(home), &home) != 0) {
        core_ = -1;  // no longer ours to use
        return;
    }
    ::sched_setaffinity(0, sizeof(allowed), &allowed);
}

}  // namespace collectives
