#include "shm/carriage.hpp"

#include <algorithm>

#include "shm/tuning.hpp"

namespace collectives {

namespace {

// From these sizes on, one copy by the kernel is faster than a copy to staging memory and a copy from there.
// A message that is reduced needs one copy more with CMA than with staging.
constexpr std::uint64_t pulled_from = 32 << 10;
constexpr std::uint64_t combined_from = 256 << 10;
constexpr std::uint64_t several_combined_from = 512 << 10;
// Messages larger than the caches are faster if they are staged, because our copy uses streaming stores and
// the kernel's copy does not. An exception is a sender that receives nothing, which has time to copy half.
constexpr std::uint64_t pulled_below = 32 << 20;
// If CMA is slower than a copy, a copy by both ends is faster than staging from this size on.
constexpr std::uint64_t joint_slowly_from = 4 << 20;
constexpr std::size_t most_combined = 4;  // the copies of more messages do not stay in the caches
// The longest messages that use places, to ranks that also send: twice as long as the places of a link; less
// if ranks share caches; as long as the places if a few ranks share caches and reduce the messages. Among few
// ranks, a message to several peers is sent to each peer by itself up to `placed_apart`.
constexpr std::uint64_t placed_with_cores = 2 << 20;
constexpr std::uint64_t placed_oversubscribed = 512 << 10;
constexpr std::uint64_t placed_combined = 1 << 20;
constexpr std::uint64_t placed_apart = 256 << 10;
// A message in one direction is divided into so many pieces, to be written and read at the same time.
constexpr std::uint32_t pieces_one_way = 8;

std::uint64_t pulled_from_of(const Traffic& traffic) {
    if (traffic.combined == 0) return pulled_from;
    // In place, results cannot be written before all peers have read the input.
    if (traffic.in_place || traffic.combined > most_combined) return ~std::uint64_t{0};
    return traffic.combined == 1 ? combined_from : several_combined_from;
}

std::uint64_t placed_up_to_of(const Traffic& traffic, bool oversubscribed) {
    if (!oversubscribed) return placed_with_cores;
    return traffic.ranks <= tuning::few_ranks && traffic.combined > 0 ? placed_combined
                                                                      : placed_oversubscribed;
}

}  // namespace

Carriage choose_carriage(const Traffic& traffic, const Geometry& geometry, bool oversubscribed) {
    Carriage carriage;
    const bool only_sends = !traffic.receives;
    // Two ranks that send to each other both write before they read, so pieces do not help them.
    if (oversubscribed || only_sends) carriage.longest_piece = geometry.slot_bytes;
    if (only_sends && !oversubscribed) carriage.pieces = pieces_one_way;
    if (!only_sends) carriage.placed_up_to = placed_up_to_of(traffic, oversubscribed);
    if (traffic.to_several) {
        // A message for several peers is in the caches after it was staged.
        carriage.placed_up_to =
            traffic.ranks <= tuning::few_ranks ? std::min(carriage.placed_up_to, placed_apart) : 0;
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
