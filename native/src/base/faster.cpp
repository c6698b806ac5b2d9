#include "base/faster.hpp"

#include <algorithm>
#include <bit>

namespace collectives {

namespace {

// Bytes of a trial of a mode: more than the caches hold, since at its beginning the caches have what the
// other mode has left there.
constexpr std::size_t trial_bytes = 6 << 20;
constexpr std::uint32_t fewest_uses = 4;
constexpr std::uint32_t most_uses = 384;
// The other mode is tried again after the uses of so many trials: soon at first, and after a change, which
// may not last; then less and less often.
constexpr std::uint32_t first_interval = 4;
constexpr std::uint32_t longest_interval = 64;
constexpr double clearly_slower = 1.1;
constexpr double weight = 0.25;  // of a new sample in the known rate
// A sample below this part of the known rate may have been interrupted, and counts as this part.
constexpr double least_counted = 0.5;

}  // namespace

Faster::Choice& Faster::choice_for(std::size_t n) {
    return choices_[std::min<std::size_t>(std::bit_width(n / smallest_) / 2, choices_.size() - 1)];
}

void Faster::Choice::start_trial(std::size_t mode, std::size_t n) {
    trial = static_cast<std::uint32_t>(std::clamp<std::size_t>(trial_bytes / n, fewest_uses, most_uses));
    left = trial;
    tried = mode;
    rate[mode] = 0;
}

std::size_t Faster::Choice::settle(std::size_t mode) {
    interval = interval == 0 || mode != chosen ? first_interval : std::min(2 * interval, longest_interval);
    settled = true;
    chosen = mode;
    uses = behind = 0;
    return chosen;
}

std::size_t Faster::Choice::next(std::size_t n) {
    if (settled) {
        behind = rate[1 - chosen] > clearly_slower * rate[chosen] ? behind + 1 : 0;
        confirm = behind >= trial;
        if (++uses < trial * interval && !confirm) return chosen;
        settled = false;
        start_trial(1 - chosen, n);
    } else if (trial == 0) {
        confirm = true;
        start_trial(1 - chosen, n);
    } else if (left == 0 && confirm) {
        confirm = false;
        start_trial(chosen, n);
    } else if (left == 0) {
        return settle(rate[1] > rate[0] ? 1 : 0);
    }
    --left;
    return tried;
}

std::size_t Faster::next(std::size_t n) { return choice_for(n).next(n); }

void Faster::took(std::size_t n, std::size_t mode, std::chrono::duration<double> duration) {
    Choice& choice = choice_for(n);
    const double rate = static_cast<double>(n) / std::max(duration.count(), 1e-9);
    double& known = choice.rate[mode];
    known = known > 0 ? known + weight * (std::max(rate, known * least_counted) - known) : rate;
}

}  // namespace collectives
