#include "result_stores.hpp"

#include <algorithm>
#include <utility>

namespace collectives {

namespace {

// Outputs from this size on go around the caches, however large those are, unless that was found to be
// slower.
constexpr std::uint64_t around_from = 12 << 20;
// What fits is doubtful from this size on, input and output together, and more than that up to so many times
// as much.
constexpr std::uint64_t doubtful_from = 4 << 20;
constexpr double doubtful_up_to = 2.5;
// Of the time through the caches, what the way around them may take where the result fits: to read it once
// afterwards takes that much longer from memory.
constexpr double worth_reading = 0.65;

// A trial is so many uses of one way on end, and then of the other. The first of them find the caches as the
// way before has left them, so the second half counts; of these the least, since who waits for a rank that
// came late waits longer.
constexpr std::array<Stores, 2> ways{Stores::cached, Stores::streaming};
constexpr std::uint32_t looks = 8;
constexpr std::uint32_t skipped = looks / 2;
constexpr std::uint32_t trial = looks * ways.size();
// The first uses find memory that nobody has touched. What should fit is not doubted before the second trial
// of what should not.
constexpr std::uint32_t first_interval = 5;
constexpr std::uint32_t second_interval = 32;
constexpr std::uint32_t longest_interval = 512;
constexpr double clearly = 0.95;  // of the time of the way in use

constexpr auto unknown = ResultStores::Clock::duration::max();

std::size_t index_of(Stores stores) { return static_cast<std::size_t>(stores); }

}  // namespace

ResultStores::ResultStores(std::uint64_t share, bool crowded)
    : fitting_(share > 0 ? share / 4 * 3 : unknown_size), crowded_(crowded) {}

bool ResultStores::fits(const Work& work) const {
    return work.out < around_from && work.in + work.out < fitting_;
}

bool ResultStores::is_doubtful(const Work& work) const {
    if (!knows_caches()) return false;
    const std::uint64_t bytes = work.in + work.out;
    if (fits(work)) return bytes >= doubtful_from;
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
        const std::uint32_t interval = expected == Stores::cached ? second_interval : first_interval;
        *kept = Kept{work, expected, interval, 0, {unknown, unknown}};
    }
    const std::uint32_t use = kept->uses++;
    if (use < kept->interval) return {kept->chosen, false};
    const std::uint32_t look = use - kept->interval;
    if (look < trial) return {ways[look / looks], look % looks >= skipped};
    settle(*kept);
    kept->interval = std::clamp(2 * kept->interval, second_interval, longest_interval);
    kept->uses = 1;
    return {kept->chosen, false};
}

void ResultStores::settle(Kept& kept) const {
    const std::array<Clock::duration, 2> least = std::exchange(kept.least, {unknown, unknown});
    if (std::ranges::count(least, unknown) > 0) return;
    using Costs = std::chrono::duration<double>;
    const Costs cached = least[index_of(Stores::cached)];
    const Costs streaming = Costs(least[index_of(Stores::streaming)]) / (fits(kept.work) ? worth_reading : 1);
    if (kept.chosen == Stores::cached) {
        if (streaming < cached * clearly) kept.chosen = Stores::streaming;
    } else if (cached < streaming * clearly) {
        kept.chosen = Stores::cached;
    }
}

void ResultStores::took(const Work& work, Stores stores, Clock::duration taken) {
    Kept* const kept = find(work);
    if (kept == nullptr) return;
    auto& least = kept->least[index_of(stores)];
    least = std::min(least, taken);
}

}  // namespace collectives
