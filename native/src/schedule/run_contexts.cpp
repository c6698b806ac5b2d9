// By which ways an operation's messages travel: what its links are told of them.
#include <algorithm>

#include "base/cpu.hpp"
#include "schedule/run.hpp"

namespace collectives {

namespace {

// From these sizes on (see Run::pulled_from) one copy by the kernel is cheaper than one to staging and one
// from there. What is not copied but reduced is copied once more that way.
constexpr std::uint64_t combined_from = 256 << 10;
constexpr std::uint64_t several_combined_from = 512 << 10;
// Messages that stay in no cache are better staged: the kernel's copy writes through the caches all the same,
// ours goes around them. But not if the sender, who receives nothing, has time to do half of it, and the
// kernel does that quickly; nor, from huge pages, where ranks only exchange what they neither add up nor copy
// as well. There they help each other from this size on: who is done first does more.
constexpr std::uint64_t pulled_below = 32 << 20;
// Where the kernel is slower than a copy, two copies are faster than one. From these sizes on that one is
// faster all the same, from huge pages, where both ends do half of it, or ranks share cores.
constexpr std::uint64_t helped_slowly_from = 4 << 20;
constexpr std::uint64_t pulled_slowly_from = 1 << 20;
constexpr std::size_t most_combined = 4;  // of more, the copies do not stay in the caches
// Longer messages to those who send some back do not go by places: twice as much as these hold, less where
// ranks share caches, as much as these hold where few ranks do and add up what comes. One to several peers,
// among few ranks, goes to each by itself up to that size.
constexpr std::uint64_t placed_with_cores = 2 << 20;
constexpr std::uint64_t placed_crowded = 512 << 10;
constexpr std::uint64_t placed_combined = 1 << 20;
constexpr std::uint64_t placed_apart = 256 << 10;
// One that a copy for each core serves, where nobody sends at the same time, and otherwise.
constexpr std::uint64_t by_core_one_way = 1 << 20;
constexpr std::uint64_t by_core_mutual = 512 << 10;
// A message that only goes one way is written and read at the same time, piece by piece.
constexpr std::uint32_t pieces_one_way = 8;
// So many times a core's second cache is staged before the same memory is written again: then it lies in
// neither core's. Who reads meanwhile fills it as well.
constexpr std::size_t caches_one_way = 2;
constexpr std::size_t caches_both_ways = 1;

std::uint64_t pulled_from_of(const Program& program, bool in_place) {
    if (program.combines == 0) return Run::pulled_from;
    // In place nothing can be written before others have read it. What is shared everyone would read, all of
    // it.
    if (in_place || program.shared || program.combines > most_combined) return ~std::uint64_t{0};
    return program.combines == 1 ? combined_from : several_combined_from;
}

bool are_few(const Program& program) { return program.size <= static_cast<int>(Run::most_apart); }

std::uint64_t placed_up_to_of(const Program& program, bool crowded) {
    if (!crowded) return placed_with_cores;
    return are_few(program) && program.combines > 0 ? placed_combined : placed_crowded;
}

}  // namespace

void Run::set_contexts() {
    const Program& program = operation().program();
    context_ = Context(request_.call, request_.fingerprint);
    const bool only_sends = program.sources.empty();
    // Two who send to each other both write before they read.
    if (workshop_.arena && (workshop_.crowded || only_sends))
        context_.longest_piece = workshop_.arena->geometry().slot_bytes;
    if (workshop_.arena && !workshop_.crowded) {
        const Geometry& geometry = workshop_.arena->geometry();
        if (only_sends) context_.pieces = pieces_one_way;
        // What was written long ago has left the caches of those who have read it. Many links share them.
        const std::size_t written = second_cache() * (only_sends ? caches_one_way : caches_both_ways);
        const auto others = static_cast<std::size_t>(std::max(program.size - 1, 1));
        context_.staged_in_turn = std::min(geometry.link_staging(), written) / others;
    }
    if (!only_sends) context_.placed_up_to = placed_up_to_of(program, workshop_.crowded);
    // Where all is added up at once nothing that was received is passed on.
    if (program.adds_up_at_once()) context_.direct_piece = turned_up_to;
    // What several peers copy lies in the caches once it is staged.
    cast_context_ = context_;
    cast_context_.placed_up_to = are_few(program) ? std::min(context_.placed_up_to, placed_apart) : 0;
    cast_context_.pulled = {};
    const bool by_core = workshop_.crowded && are_few(program) && hands_lines_over();
    cast_by_core_up_to_ = !by_core ? 0 : only_sends ? by_core_one_way : by_core_mutual;
    context_.pulled.from = pulled_from_of(program, is_in_place());
    const bool helps = !workshop_.crowded && only_sends;
    const bool only_exchanges = program.says && !only_sends && program.combines == 0 && !program.echo;
    if (!helps) (only_exchanges ? context_.pulled.huge_from : context_.pulled.below) = pulled_below;
    if (helps || (workshop_.crowded && program.combines == 0)) {
        const std::uint64_t slowly_from = helps ? helped_slowly_from : pulled_slowly_from;
        const std::uint64_t from = std::max(context_.pulled.from, slowly_from);
        context_.pulled_slowly = {.from = from, .huge_from = from, .below = pulled_below};
    }
    if (!program.says) {
        context_.helped_from = 0;
    } else if (only_exchanges && !workshop_.crowded) {
        context_.helped_from = pulled_below;
    }
}

}  // namespace collectives
