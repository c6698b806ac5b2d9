#include "schedule/result_stores.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/cpu.hpp"

namespace collectives {

namespace {

// Outputs from this size on go around the caches, however large those are, unless that was found to be
// slower.
constexpr std::uint64_t around_from = 12 << 20;
// What fits is doubtful, input and output together, from so many times the second cache on, which most of it
// has gone through then; and what is larger up to so many times what fits.
constexpr std::uint64_t second_caches = 4;
constexpr double doubtful_up_to = 2.5;

// A trial is so many uses of one way on end, and then of the other. The first of them find the caches as the
// way before has left them, so the second half counts; of these the least, since who waits for a rank that
// came late waits longer.
constexpr std::array<Stores, 2> ways{Stores::cached, Stores::streaming};
constexpr std::uint32_t looks = 8;
constexpr std::uint32_t skipped = looks / 2;
constexpr std::uint32_t trial = looks * ways.size();
// The first uses find memory that nobody has touched. Around the caches there is no hurry: of ranks that
// share cores each finds them full of what others have read, and through them the first calls take the
// longest.
constexpr std::uint32_t first_interval = 5;
constexpr std::uint32_t second_interval = 32;
constexpr std::uint32_t longest_interval = 512;
constexpr double clearly = 0.95;  // of the time of the way that is preferred

std::size_t index_of(Stores stores) { return static_cast<std::size_t>(stores); }

}  // namespace

ResultStores::ResultStores(Caches caches, bool crowded)
    : fitting_(caches.last > 0 ? caches.last / 4 * 3 : unknown_size),
      doubtful_(second_caches * caches.second),
      crowded_(crowded) {}

bool ResultStores::fits(const Work& work) const {
    return work.out < around_from && work.in + work.out < fitting_;
}

bool ResultStores::is_doubtful(const Work& work) const {
    if (!knows_caches()) return false;
    const std::uint64_t bytes = work.in + work.out;
    if (fits(work)) return bytes >= doubtful_;
    return !crowded_ && static_cast<double>(bytes) < doubtful_up_to * static_cast<double>(fitting_);
}

ResultStores::Kept* ResultStores::find(const Work& work) {
    const auto found =
        std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.work == work; });
    return found == kept_.end() ? nullptr : &*found;
}

ResultStores::Turn ResultStores::next(const Work& work) {
    const Stores expected = fits(work) ? Stores::cached : Stores::streaming;
    if (!is_doubtful(work)) return {expected, false};
    Kept* kept = find(work);
    if (kept == nullptr) {
        kept = &kept_[oldest_];
        oldest_ = (oldest_ + 1) % kept_.size();
        *kept =
            crowded_ ? Kept{work, Stores::streaming, second_interval} : Kept{work, expected, first_interval};
    }
    const std::uint32_t use = kept->uses++;
    if (use < kept->interval) return {kept->chosen, false};
    const std::uint32_t look = use - kept->interval;
    if (look < trial) {
        const bool timed = look % looks >= skipped;
        return {ways[look / looks], timed, timed && expected == Stores::cached};
    }
    settle(*kept);
    kept->interval = std::clamp(2 * kept->interval, second_interval, longest_interval);
    kept->uses = 1;
    return {kept->chosen, false};
}

void ResultStores::settle(Kept& kept) const {
    const std::array<Spent, 2> least = std::exchange(kept.least, {});
    const auto is_unknown = [](const Spent& spent) { return spent.operation == Clock::duration::max(); };
    if (std::ranges::any_of(least, is_unknown)) return;
    using Costs = std::chrono::duration<double>;
    const auto cost = [&](Stores stores) -> Costs {
        const Spent& spent = least[index_of(stores)];
        return spent.operation + spent.reading;
    };
    // Of what fits, the way in which the operation is shorter, unless its reading takes that back and more.
    Stores preferred = kept.chosen;
    if (fits(kept.work)) preferred = least[0].operation < least[1].operation ? ways[0] : ways[1];
    const Stores other = preferred == Stores::cached ? Stores::streaming : Stores::cached;
    kept.chosen = cost(other) < cost(preferred) * clearly ? other : preferred;
}

void ResultStores::took(const Work& work, Stores stores, Clock::duration taken, Clock::duration reading) {
    Kept* const kept = find(work);
    if (kept == nullptr) return;
    Spent& least = kept->least[index_of(stores)];
    least.operation = std::min(least.operation, taken);
    least.reading = std::min(least.reading, reading);
}

ResultStores::Clock::duration time_reading(const std::byte* result, std::uint64_t n) {
    const auto began = ResultStores::Clock::now();
    std::uint64_t read = 0;
    std::uint64_t word = 0;
    // A word of each line, which is as much as all of it.
    for (std::uint64_t at = 0; at + sizeof(word) <= n; at += cache_line) {
        std::memcpy(&word, result + at, sizeof(word));
        read ^= word;
    }
    asm volatile("" : : "r"(read));
    return ResultStores::Clock::now() - began;
}

}  // namespace collectives
