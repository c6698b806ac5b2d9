#include "faster.hpp"

#include <algorithm>
#include <bit>

namespace collectives {

namespace {

// A way is tried several times on end, and the last time counts: what comes first finds caches as the other
// way has left them.
constexpr std::uint32_t looks = 4;
constexpr std::uint32_t look_after = 512;  // uses until the slower way is tried again
constexpr double weight = 0.25;            // of a new sample of the way in use
constexpr double worst = 0.5;              // of what is known: a slower one may have been interrupted

}  // namespace

std::size_t Faster::class_of(std::size_t n, std::size_t smallest) {
    return std::min<std::size_t>(std::bit_width(n / smallest) / 2, classes - 1);
}

void Faster::add(std::size_t size_class, const std::array<double, 2>& later) {
    if (later[0] > 0 && later[1] > 0) choices_[size_class].later = later;
}

std::size_t Faster::next(std::size_t n) {
    Choice& choice = choice_for(n);
    const std::uint32_t use = choice.uses++;
    if (use < 2 * looks) return use / looks;
    if (use % look_after == 0) choice.tried = 1 - choice.faster();
    return use % look_after < looks ? choice.tried : choice.faster();
}

void Faster::took(std::size_t n, std::size_t way, Clock::duration taken) {
    Choice& choice = choice_for(n);
    const double rate = static_cast<double>(n) / std::max(std::chrono::duration<double>(taken).count(), 1e-9);
    const bool in_use = choice.uses > 2 * looks && way == choice.faster();
    double& known = choice.rate[way];
    known = in_use ? known + weight * (std::max(rate, known * worst) - known) : rate;
}

}  // namespace collectives
