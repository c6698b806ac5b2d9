#include "core/result_stores.hpp"

#include <algorithm>

namespace collectives {

namespace {

// Outputs of this size or more never count as fitting into the caches.
constexpr std::uint64_t around_from = 12 << 20;
// A part of results may stay in the caches if they have at most so many times the bytes that fit.
constexpr double timed_up_to = 2.5;

// A trial is `looks` uses with each kind of stores. The first uses find the caches as the previous kind has
// left them, so only the second half counts. Of these the shortest time counts, since a rank may have to wait
// for a late rank.
constexpr std::array<Stores, 2> tried{Stores::cached, Stores::streaming};
constexpr std::uint32_t looks = 8;
constexpr std::uint32_t skipped = looks / 2;
constexpr std::uint32_t trial = looks * tried.size();
// Uses before the first trial: the first uses find memory whose pages were never touched.
constexpr std::uint32_t first_interval = 5;
constexpr std::uint32_t second_interval = 32;
constexpr std::uint32_t longest_interval = 512;
constexpr double clearly = 0.95;  // other stores are chosen below this part of the time of the current ones
constexpr std::size_t most_kept = 32;

constexpr auto unknown_time = ResultStores::Clock::duration::max();

std::size_t index_of(Stores stores) { return static_cast<std::size_t>(stores); }

}  // namespace

ResultStores::ResultStores(std::uint64_t cache, bool oversubscribed)
    : fitting_(cache > 0 ? cache / 4 * 3 : unknown_size), oversubscribed_(oversubscribed) {}

bool ResultStores::fits(const Work& work) const {
    return work.out < around_from && work.in + work.out < fitting_;
}

bool ResultStores::is_timed(const Work& work) const {
    if (!knows_caches() || oversubscribed_ || fits(work)) return false;
    return static_cast<double>(work.in + work.out) < timed_up_to * static_cast<double>(fitting_);
}

ResultStores::Kept* ResultStores::find(const Work& work) {
    const auto found =
        std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.work == work; });
    return found == kept_.end() ? nullptr : &*found;
}

ResultStores::Turn ResultStores::next(const Work& work, std::uint64_t call_bytes) {
    if (call_bytes > work.out) {
        const Work whole{work.program, work.in == 0 ? 0 : call_bytes, call_bytes};
        return {fits(whole) ? Stores::cached : Stores::streaming, false};
    }
    if (!is_timed(work)) return {fits(work) ? Stores::cached : Stores::streaming, false};
    Kept* kept = find(work);
    if (kept == nullptr) {
        if (kept_.size() < most_kept) {
            kept = &kept_.emplace_back();
        } else {
            kept = &kept_[oldest_];
            oldest_ = (oldest_ + 1) % most_kept;
        }
        *kept = {.work = work, .interval = first_interval, .shortest = {unknown_time, unknown_time}};
    }
    const std::uint32_t use = kept->uses++;
    if (use < kept->interval) return {kept->chosen, false};
    const std::uint32_t look = use - kept->interval;
    if (look < trial) return {tried[look / looks], look % looks >= skipped};
    settle(*kept);
    kept->interval = std::clamp(2 * kept->interval, second_interval, longest_interval);
    kept->uses = 1;
    return {kept->chosen, false};
}

void ResultStores::settle(Kept& kept) {
    const auto [cached, streaming] = kept.shortest;
    kept.shortest = {unknown_time, unknown_time};
    if (cached == unknown_time || streaming == unknown_time) return;
    const bool is_cached = kept.chosen == Stores::cached;
    const auto in_use = is_cached ? cached : streaming;
    const auto other = is_cached ? streaming : cached;
    using Seconds = std::chrono::duration<double>;
    if (Seconds(other) < Seconds(in_use) * clearly) {
        kept.chosen = is_cached ? Stores::streaming : Stores::cached;
    }
}

void ResultStores::took(const Work& work, Stores stores, Clock::duration taken) {
    Kept* const kept = find(work);
    if (kept == nullptr) return;
    Clock::duration& shortest = kept->shortest[index_of(stores)];
    shortest = std::min(shortest, taken);
}

}  // namespace collectives
