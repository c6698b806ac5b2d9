#include "faster.hpp"

#include <algorithm>
#include <bit>

namespace collectives {

namespace {

// A way is tried with so many bytes on end, more than caches hold, since at first it finds these as the other
// way has left them;
constexpr std::size_t looked_at = 6 << 20;
constexpr std::uint32_t fewest_looks = 4;
constexpr std::uint32_t most_looks = 384;
// and the slower one again after so many times as many.
constexpr std::uint32_t look_after = 128;
constexpr double clearly = 1.1;  // slower
constexpr double weight = 0.25;  // of a new sample
constexpr double worst = 0.5;    // of what is known: a slower one may have been interrupted

}  // namespace

std::size_t Faster::class_of(std::size_t n, std::size_t smallest) {
    return std::min<std::size_t>(std::bit_width(n / smallest) / 2, classes - 1);
}

void Faster::add(std::size_t size_class, const std::array<double, 2>& later) {
    if (later[0] > 0 && later[1] > 0) choices_[size_class].later = later;
}

void Faster::Choice::look(std::size_t way, std::size_t n) {
    looks = static_cast<std::uint32_t>(std::clamp<std::size_t>(looked_at / n, fewest_looks, most_looks));
    left = looks;
    tried = way;
    rate[way] = 0;
}

std::size_t Faster::Choice::next(std::size_t n) {
    if (settled) {
        behind = cost(chosen) > clearly * cost(1 - chosen) ? behind + 1 : 0;
        again = behind == looks;
        if (++uses < looks * look_after && !again) return chosen;
        settled = false;
        look(1 - chosen, n);
    } else if (looks == 0) {
        again = true;
        look(1 - chosen, n);
    } else if (left == 0 && again) {
        again = false;
        look(chosen, n);
    } else if (left == 0) {
        settled = true;
        chosen = cost(1) < cost(0) ? 1 : 0;
        uses = behind = 0;
        return chosen;
    }
    --left;
    return tried;
}

std::size_t Faster::next(std::size_t n) { return choice_for(n).next(n); }

void Faster::took(std::size_t n, std::size_t way, Clock::duration taken) {
    Choice& choice = choice_for(n);
    const double rate = static_cast<double>(n) / std::max(std::chrono::duration<double>(taken).count(), 1e-9);
    double& known = choice.rate[way];
    known = known > 0 ? known + weight * (std::max(rate, known * worst) - known) : rate;
}

}  // namespace collectives
