#include "faster.hpp"

#include <algorithm>
#include <bit>

namespace collectives {

namespace {

// A way is tried with so many bytes on end, since at first it finds caches as the other way has left them;
constexpr std::size_t looked_at = 3 << 20;
constexpr std::size_t fewest_looks = 4;
constexpr std::size_t most_looks = 96;
constexpr std::uint32_t look_after = 256;  // and, if it was the slower one, again after so many times as many
constexpr double weight = 0.25;            // of a new sample
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
    // At the beginning one way after the other.
    if (use == choice.look + choice.looks * (choice.look == 0 ? 1 : look_after)) {
        choice.tried = 1 - choice.faster();
        choice.rate[choice.tried] = 0;
        choice.looks = static_cast<std::uint32_t>(std::clamp(looked_at / n, fewest_looks, most_looks));
        choice.look = use;
    }
    return use - choice.look < choice.looks ? choice.tried : choice.faster();
}

void Faster::took(std::size_t n, std::size_t way, Clock::duration taken) {
    Choice& choice = choice_for(n);
    const double rate = static_cast<double>(n) / std::max(std::chrono::duration<double>(taken).count(), 1e-9);
    double& known = choice.rate[way];
    known = known > 0 ? known + weight * (std::max(rate, known * worst) - known) : rate;
}

}  // namespace collectives
