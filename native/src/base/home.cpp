#include "base/home.hpp"

#include <sched.h>

namespace collectives {

using namespace std::chrono_literals;

namespace {
constexpr auto between_moves = 1ms;
constexpr auto away_for = 50ms;
}  // namespace

void Home::seek(Clock::time_point now) {
    if (core_ < 0 || now < moved_ + between_moves) return;
    int& wanted = now < away_until_ ? refuge_ : core_;
    if (wanted < 0 || ::sched_getcpu() == wanted) return;
    moved_ = now;
    if (!move(wanted)) wanted = -1;  // this thread may not, or no longer, use that core
}

bool Home::flee(Clock::time_point now, int refuge) {
    if (core_ < 0) return false;
    if (::sched_getcpu() == core_ && now >= away_until_) away_until_ = now + away_for;
    if (now < away_until_) refuge_ = refuge;
    seek(now);
    return now >= away_until_ || refuge_ >= 0;
}

bool Home::move(int core) {
    cpu_set_t allowed;
    cpu_set_t wanted;
    CPU_ZERO(&wanted);
    CPU_SET(core, &wanted);
    if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || !CPU_ISSET(core, &allowed) ||
        ::sched_setaffinity(0, sizeof(wanted), &wanted) != 0) {
        return false;
    }
    ::sched_setaffinity(0, sizeof(allowed), &allowed);
    return true;
}

}  // namespace collectives
