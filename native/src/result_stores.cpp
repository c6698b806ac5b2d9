#include "result_stores.hpp"

#include <algorithm>

namespace collectives {

namespace {

// Outputs from this size on go around the caches, however large those are, unless that was found to be
// slower.
constexpr std::uint64_t around_from = 12 << 20;
// More than fits is doubtful up to so many times as much.
constexpr double doubtful_up_to = 2.5;

// A trial is so many uses of one way on end, and then of the other. The first of them find the caches as the
// way before has left them, so the second half counts; of these the least, since who waits for a rank that
// came late waits longer.
constexpr std::array<Stores, 2> ways{Stores::cached, Stores::streaming};
constexpr std::uint32_t looks = 8;
constexpr std::uint32_t skipped = looks / 2;
constexpr std::uint32_t trial = looks * ways.size();
// The first uses find memory that nobody has touched.
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
    if (!knows_caches() || crowded_) return false;
    return static_cast<double>(work.in + work.out) < doubtful_up_to * static_cast<double>(fitting_);
}

ResultStores::Kept* ResultStores::find(const Work& work) {
    const auto found =
        std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.work == work; });
    return found == kept_.end() ? nullptr : &*found;
}

ResultStores::Turn ResultStores::next(const Work& work) {
    if (fits(work)) return {Stores::cached, false};
    if (!is_doubtful(work)) return {Stores::streaming, false};
    Kept* kept = find(work);
    if (kept == nullptr) {
        kept = &kept_[oldest_];
        oldest_ = (oldest_ + 1) % kept_.size();
        *kept = Kept{work, Stores::streaming, first_interval, 0, {unknown, unknown}};
    }
    const std::uint32_t use = kept->uses++;
    if (use < kept->interval) return {kept->chosen, false};
    const std::uint32_t look = use - kept->interval;
    if (look < trial) return {ways[look / looks], look % looks >= skipped};
    const Stores other = kept->chosen == Stores::cached ? Stores::streaming : Stores::cached;
    const Clock::duration in_use = kept->least[index_of(kept->chosen)];
    if (in_use != unknown && kept->least[index_of(other)] < in_use * clearly) kept->chosen = other;
    kept->least = {unknown, unknown};
    kept->interval = std::clamp(2 * kept->interval, second_interval, longest_interval);
    kept->uses = 1;
    return {kept->chosen, false};
}

void ResultStores::took(const Work& work, Stores stores, Clock::duration taken) {
    Kept* const kept = find(work);
    if (kept == nullptr) return;
    auto& least = kept->least[index_of(stores)];
    least = std::min(least, taken);
}

}  // namespace collectives
