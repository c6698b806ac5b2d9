// By which ways an operation's messages travel: what its links are told of them.
#include <algorithm>

#include "base/cpu.hpp"
#include "schedule/schedule_task.hpp"

namespace collectives {

namespace {

// From these sizes on one copy by the kernel is cheaper than one to staging and one
// from there. What is not copied but reduced is copied once more that way.
constexpr std::uint64_t pulled_from = 32 << 10;
constexpr std::uint64_t combined_from = 256 << 10;
constexpr std::uint64_t several_combined_from = 512 << 10;
// Messages that stay in no cache are better staged: the kernel's copy writes through the caches all the same,
// ours goes around them. But not if the sender, who receives nothing, has time to write half of it.
constexpr std::uint64_t pulled_below = 32 << 20;
// Where the kernel is slower than a copy, a copy by both ends is faster than staging from this size on.
constexpr std::uint64_t joint_slowly_from = 4 << 20;
constexpr std::size_t most_combined = 4;  // of more, the copies do not stay in the caches
// Longer messages to those who send some back do not go by places: twice as much as these hold, less where
// ranks share caches, as much as these hold where few ranks do and add up what comes. One to several peers,
// among few ranks, goes to each by itself up to that size.
constexpr int few_ranks = 4;
constexpr std::uint64_t placed_with_cores = 2 << 20;
constexpr std::uint64_t placed_crowded = 512 << 10;
constexpr std::uint64_t placed_combined = 1 << 20;
constexpr std::uint64_t placed_apart = 256 << 10;
// A message that only goes one way is written and read at the same time, piece by piece.
constexpr std::uint32_t pieces_one_way = 8;
std::uint64_t pulled_from_of(const Program& program, bool in_place) {
    if (program.combines == 0) return pulled_from;
    // In place nothing can be written before others have read it. What is shared everyone would read, all of
    // it.
    if (in_place || program.shared || program.combines > most_combined) return ~std::uint64_t{0};
    return program.combines == 1 ? combined_from : several_combined_from;
}

bool are_few(const Program& program) { return program.size <= few_ranks; }

std::uint64_t placed_up_to_of(const Program& program, bool oversubscribed) {
    if (!oversubscribed) return placed_with_cores;
    return are_few(program) && program.combines > 0 ? placed_combined : placed_crowded;
}

}  // namespace

void ScheduleTask::set_contexts() {
    const Program& program = this->program();
    context_ = Context(request_->call, request_->fingerprint);
    const bool only_sends = program.sources.empty();
    // Two who send to each other both write before they read.
    if (colocated_.arena && (colocated_.oversubscribed || only_sends))
        context_.longest_piece = colocated_.arena->geometry().slot_bytes;
    if (only_sends && !colocated_.oversubscribed) context_.pieces = pieces_one_way;
    if (!only_sends) context_.placed_up_to = placed_up_to_of(program, colocated_.oversubscribed);
    // What several peers copy lies in the caches once it is staged.
    multicast_context_ = context_;
    multicast_context_.placed_up_to = are_few(program) ? std::min(context_.placed_up_to, placed_apart) : 0;
    multicast_context_.pulled = {};
    context_.pulled.from = pulled_from_of(program, request_->is_in_place());
    if (colocated_.oversubscribed || !only_sends) {
        context_.pulled.below = pulled_below;
    } else {
        context_.pulled_slowly = {.from = std::max(context_.pulled.from, joint_slowly_from),
                                  .below = pulled_below};
    }
    context_.joint = !program.says;
}

}  // namespace collectives
