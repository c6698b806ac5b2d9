#include "faster.hpp"

#include <algorithm>
#include <bit>

namespace collectives {

namespace {

constexpr std::uint32_t first_looks = 6;   // by turns: what comes first is often slow for other reasons
constexpr std::uint32_t look_after = 128;  // uses until the slower way is tried again
constexpr double weight = 0.25;            // of a new sample of the way in use
constexpr double worst = 0.5;              // of what is known: a slower one may have been interrupted

}  // namespace

Faster::Choice& Faster::choice_for(std::size_t n) {
    return choices_[std::min<std::size_t>(std::bit_width(n / smallest_) / 2, choices_.size() - 1)];
}

std::size_t Faster::next(std::size_t n) {
    Choice& choice = choice_for(n);
    const std::uint32_t use = choice.uses++;
    if (use < first_looks) return use % 2;
    return use % look_after == 0 ? 1 - choice.faster() : choice.faster();
}

void Faster::took(std::size_t n, std::size_t way, Clock::duration taken) {
    Choice& choice = choice_for(n);
    const double rate = static_cast<double>(n) / std::max(std::chrono::duration<double>(taken).count(), 1e-9);
    const bool in_use = choice.uses > first_looks && way == choice.faster();
    double& known = choice.rate[way];
    known = in_use ? known + weight * (std::max(rate, known * worst) - known) : rate;
}

}  // namespace collectives
