#include "link/published_calls.hpp"

#include <algorithm>
#include <bit>

#include "base/error.hpp"

namespace collectives {

namespace {
using Words = std::array<std::uint64_t, sizeof(Call) / sizeof(std::uint64_t)>;
}  // namespace

void PublishedCalls::publish(const Call& call) {
    const auto index =
        static_cast<std::uint32_t>(call.is_message() ? remembered : call.sequence % remembered);
    const auto words = std::bit_cast<Words>(call);
    Entry& entry = calls_[index];
    const std::uint32_t version = entry.version.load(std::memory_order_relaxed);
    entry.version.store(version + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    for (std::size_t i = 0; i < words.size(); ++i) entry.words[i].store(words[i], std::memory_order_relaxed);
    entry.version.store(version + 2, std::memory_order_release);
    latest_.store(index, std::memory_order_release);
}

std::optional<Call> PublishedCalls::entry(std::size_t index) const {
    const Entry& entry = calls_[std::min(index, remembered)];
    const std::uint32_t version = entry.version.load(std::memory_order_acquire);
    Words words{};
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = entry.words[i].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    const bool whole =
        version % 2 == 0 && version > 0 && entry.version.load(std::memory_order_relaxed) == version;
    return whole ? std::optional(std::bit_cast<Call>(words)) : std::nullopt;
}

Call PublishedCalls::current() const {
    return entry(latest_.load(std::memory_order_acquire)).value_or(Call{});
}

std::optional<Call> PublishedCalls::collective(std::uint64_t sequence) const {
    std::optional<Call> call = entry(sequence % remembered);
    if (call && call->sequence != sequence) call.reset();
    return call;
}

std::optional<Call> PublishedCalls::last_collective() const {
    std::optional<Call> last;
    for (std::size_t index = 0; index < remembered; ++index) {
        const std::optional<Call> call = entry(index);
        if (call && (!last || call->sequence > last->sequence)) last = call;
    }
    return last;
}

void PublishedCalls::report(const Disagreement& found) {
    if (disagrees_.load(std::memory_order_relaxed) != 0) return;
    disagreement_ = found;
    disagrees_.store(1, std::memory_order_release);
}

std::optional<Disagreement> PublishedCalls::disagreement() const {
    if (disagrees_.load(std::memory_order_acquire) == 0) return std::nullopt;
    return disagreement_;
}

void CallComparison::compare(const Call& mine) const {
    if (mine.is_message()) return;
    // Also compare earlier calls, since ranks that disagreed may have gone on: a root that only sends does
    // not wait.
    const std::uint64_t next = mine.sequence + 1;
    for (std::uint64_t s = next - std::min<std::uint64_t>(next, PublishedCalls::remembered); s < next; ++s) {
        const std::optional<Call> ours = own_.collective(s);
        const std::optional<Call> theirs = theirs_.collective(s);
        if (ours && theirs && *ours != *theirs) link_.throw_desync(*ours, *theirs);
    }
}

Call CallComparison::instead_of(const Call& mine) const {
    const std::optional<Call> same = mine.is_message() ? std::nullopt : theirs_.collective(mine.sequence);
    return same && *same != mine ? *same : theirs_.current();
}

void CallComparison::throw_other_call(const Call& mine) const {
    compare(mine);  // the disagreement may be about an earlier call
    const Call theirs = instead_of(mine);
    link_.throw_desync(mine, theirs, theirs == mine ? ", after other operations than this rank" : "");
}

void CallComparison::throw_disagreement() const {
    const std::optional<Disagreement> found = theirs_.disagreement();
    if (!found) return;
    own_.report(*found);
    const auto& [ranks, calls] = *found;
    const int peer = link_.peer().rank;
    for (const std::size_t mine : {0U, 1U}) {
        if (ranks[mine] == rank_ && ranks[1 - mine] == peer) {
            throw link_.desync(calls[mine], calls[1 - mine], "", Finder::another_rank);
        }
    }
    const auto side = [&](std::size_t i) {
        return (ranks[i] == rank_ ? "this rank" : name_ranks({ranks[i]})) + " is in " + calls[i].describe();
    };
    throw Error(ErrorKind::desync,
                "ranks called different operations: " + side(0) + "; " + side(1) + ", as " +
                    link_.peer().name() + " has found",
                {std::min(ranks[0], ranks[1]), std::max(ranks[0], ranks[1])}, Finder::another_rank);
}

bool CallComparison::is_accused() const {
    const std::optional<Disagreement> found = theirs_.disagreement();
    const std::optional<Call> last = own_.last_collective();
    const bool is_ahead = found && !found->calls[0].is_message() && !found->calls[1].is_message() && last &&
                          last->sequence < found->calls[0].sequence;
    return !is_ahead;
}

}  // namespace collectives
