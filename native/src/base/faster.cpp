#include "base/faster.hpp"

#include <algorithm>
#include <bit>

namespace collectives {

namespace {

// A way is tried with so many bytes on end, more than caches hold, since at first it finds these as the other
// way has left them;
constexpr std::size_t looked_at = 6 << 20;
constexpr std::uint32_t fewest_looks = 4;
constexpr std::uint32_t most_looks = 384;
// and the slower one again after so many times as many: soon at first, and after a change, which may not
// last, then less and less often.
constexpr std::uint32_t look_first = 4;
constexpr std::uint32_t look_after = 64;
// One that is much slower is tried no longer than for a part in so many of that, and so may be sooner again.
constexpr double much = 3;
constexpr std::uint32_t much_after = 24;
constexpr std::uint32_t fewest_in_beginning = 3;  // one of them may have been interrupted
constexpr std::uint32_t look_soon = 16;
constexpr double clearly = 1.1;       // slower
constexpr std::uint32_t at_once = 4;  // times as fast is a way doubted that is much slower
constexpr double weight = 0.25;       // of a new sample
constexpr double worst = 0.5;         // of what is known: a slower one may have been interrupted

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

bool Faster::Choice::is_hopeless() const {
    // The first trials are whole ones: memory is new, and what reading costs is not known.
    const std::uint32_t looked = looks - left;
    if (interval == 0 || looked < fewest_in_beginning) return false;
    return looked * much_after >= looks && cost(tried) > much * cost(1 - tried);
}

std::size_t Faster::Choice::settle(std::size_t way) {
    const std::uint32_t most = cost(1 - way) > much * cost(way) ? look_soon : look_after;
    interval = interval == 0 || way != chosen ? look_first : std::min(2 * interval, most);
    settled = true;
    again = false;
    chosen = way;
    uses = behind = 0;
    return chosen;
}

std::size_t Faster::Choice::next(std::size_t n) {
    if (settled) {
        const double slower = cost(chosen) / cost(1 - chosen);
        behind = slower > much ? behind + at_once : slower > clearly ? behind + 1 : 0;
        again = behind >= looks;
        if (++uses < looks * interval && !again) return chosen;
        settled = false;
        look(1 - chosen, n);
    } else if (looks == 0) {
        again = true;
        look(1 - chosen, n);
    } else if (is_hopeless()) {
        return settle(1 - tried);
    } else if (left == 0 && again) {
        again = false;
        look(chosen, n);
    } else if (left == 0) {
        return settle(cost(1) < cost(0) ? 1 : 0);
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
