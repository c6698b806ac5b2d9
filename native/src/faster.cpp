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

std::size_t Faster::begin(std::size_t n) {
    class_ = std::min<std::size_t>(std::bit_width(n / smallest_) / 2, choices_.size() - 1);
    Choice& choice = choices_[class_];
    const std::size_t faster = choice.rate[1] > choice.rate[0] ? 1 : 0;
    const std::uint32_t use = choice.uses++;
    if (use < first_looks) {
        looking_ = true;
        way_ = use % 2;
    } else {
        looking_ = use % look_after == 0;
        way_ = looking_ ? 1 - faster : faster;
    }
    bytes_ = n;
    began_ = Clock::now();
    return way_;
}

void Faster::end() {
    const std::chrono::duration<double> taken = Clock::now() - began_;
    const double rate = static_cast<double>(bytes_) / std::max(taken.count(), 1e-9);
    double& known = choices_[class_].rate[way_];
    known = looking_ ? rate : known + weight * (std::max(rate, known * worst) - known);
}

}  // namespace collectives
