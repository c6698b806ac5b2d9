#include "shm/carriage.hpp"

#include <algorithm>

namespace collectives {

namespace {

// From these sizes on one copy by the kernel is cheaper than one to staging and one from there. What is not
// copied but reduced is copied once more that way.
constexpr std::uint64_t pulled_from = 32 << 10;
constexpr std::uint64_t combined_from = 256 << 10;
constexpr std::uint64_t several_combined_from = 512 << 10;
// Messages that stay in no cache are better staged: the kernel's copy writes through the caches all the same,
// ours goes around them. But not if the sender, who receives nothing, has time to write half of it.
constexpr std::uint64_t pulled_below = 32 << 20;
// Where the kernel is slower than a copy, a copy by both ends is faster than staging from this size on.
constexpr std::uint64_t joint_slowly_from = 4 << 20;
constexpr std::size_t most_combined = 4;  // of more, the copies do not stay in the caches
// Longer messages to ranks that send some back do not go by places: twice as much as these hold, less where
// ranks share caches, as much as these hold where few ranks do and add up what comes. One to several peers,
// among few ranks, goes to each by itself up to that size.
constexpr int few_ranks = 4;
constexpr std::uint64_t placed_with_cores = 2 << 20;
constexpr std::uint64_t placed_oversubscribed = 512 << 10;
constexpr std::uint64_t placed_combined = 1 << 20;
constexpr std::uint64_t placed_apart = 256 << 10;
// A message that only goes one way is written and read at the same time, piece by piece.
constexpr std::uint32_t pieces_one_way = 8;

std::uint64_t pulled_from_of(const Traffic& traffic) {
    if (traffic.combined == 0) return pulled_from;
    // In place nothing can be written before others have read it.
    if (traffic.in_place || traffic.combined > most_combined) return ~std::uint64_t{0};
    return traffic.combined == 1 ? combined_from : several_combined_from;
}

std::uint64_t placed_up_to_of(const Traffic& traffic, bool oversubscribed) {
    if (!oversubscribed) return placed_with_cores;
    return traffic.ranks <= few_ranks && traffic.combined > 0 ? placed_combined : placed_oversubscribed;
}

}  // namespace

Carriage choose_carriage(const Traffic& traffic, const Geometry& geometry, bool oversubscribed) {
    Carriage carriage;
    const bool only_sends = !traffic.receives;
    // Two who send to each other both write before they read.
    if (oversubscribed || only_sends) carriage.longest_piece = geometry.slot_bytes;
    if (only_sends && !oversubscribed) carriage.pieces = pieces_one_way;
    if (!only_sends) carriage.placed_up_to = placed_up_to_of(traffic, oversubscribed);
    if (traffic.to_several) {
        // What several peers copy lies in the caches once it is staged.
        carriage.placed_up_to =
            traffic.ranks <= few_ranks ? std::min(carriage.placed_up_to, placed_apart) : 0;
        return carriage;
    }
    carriage.pulled.from = pulled_from_of(traffic);
    if (oversubscribed || !only_sends) {
        carriage.pulled.below = pulled_below;
    } else {
        carriage.pulled_slowly = {.from = std::max(carriage.pulled.from, joint_slowly_from),
                                  .below = pulled_below};
    }
    return carriage;
}

}  // namespace collectives
