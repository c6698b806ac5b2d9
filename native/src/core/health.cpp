#include "core/health.hpp"

#include <algorithm>
#include <utility>

#include "core/warnings.hpp"

namespace collectives {

namespace {
constexpr std::size_t most_named = 8;
}

Error Cause::error(const Call* during) const {
    if (gone.empty()) return {kind, text, ranks, Finder::another_rank};
    const std::string when = during == nullptr ? "" : " during " + during->describe();
    return {kind, gone + " is gone" + when + ": " + text, ranks, Finder::another_rank};
}

bool Cause::ends(const Call& call, const std::vector<int>& peers, Clock::time_point began,
                 Clock::time_point now) const {
    if (kind == ErrorKind::peer_lost) {
        const auto is_gone = [&](int peer) { return std::ranges::find(ranks, peer) != ranks.end(); };
        if (std::ranges::any_of(peers, is_gone)) return true;
        if (call.is_message()) return false;
    } else if (!concerns(call)) {
        return false;
    }
    return now - std::max(since, began) >= grace;
}

void Health::condemn(Cause cause) {
    {
        const std::lock_guard lock(mutex_);
        if (cause_) return;
        cause.since = Clock::now();
        cause_ = std::move(cause);
        condemned_.store(true, std::memory_order_release);
        found_.notify_all();
    }
    ring_();
}

void Health::wait_for_cause(const std::vector<int>& gone, std::chrono::nanoseconds timeout,
                            Clock::time_point deadline) {
    const auto has_left = [&](int rank) { return left_.contains(rank); };
    const auto on_its_way_until = Clock::now() + timeout;
    std::unique_lock lock(mutex_);
    while (!cause_) {
        const auto silence_until = std::min(in_doubt_until_, deadline);
        const bool is_expected = !std::ranges::all_of(gone, has_left);
        const auto until = is_expected ? std::max(on_its_way_until, silence_until) : silence_until;
        if (Clock::now() >= until) return;
        found_.wait_until(lock, until);
    }
}

void Health::wait_for_cause(std::chrono::nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    found_.wait_for(lock, timeout, [&] { return cause_.has_value(); });
}

void Health::note_left(int rank) {
    const std::lock_guard lock(mutex_);
    left_.insert(rank);
    found_.notify_all();
}

void Health::note_doubt(Clock::time_point until) {
    const std::lock_guard lock(mutex_);
    in_doubt_until_ = until;
    found_.notify_all();
}

std::vector<int> Health::left() {
    const std::lock_guard lock(mutex_);
    return {left_.begin(), left_.end()};
}

void Health::add_late(std::uint64_t sequence, int rank) {
    const std::lock_guard lock(mutex_);
    if (sequence < sequence_) return;
    if (sequence > sequence_) late_.clear();
    sequence_ = sequence;
    late_.insert(rank);
}

std::vector<int> Health::late(std::uint64_t sequence) {
    const std::lock_guard lock(mutex_);
    if (sequence != sequence_) return {};
    return {late_.begin(), late_.end()};
}

void Health::forget_late() {
    const std::lock_guard lock(mutex_);
    late_.clear();
}

void Health::warn_of_late(const Call& call, std::chrono::nanoseconds waited) {
    const std::vector<int> ranks = late(call.sequence);
    if (ranks.empty()) return;
    std::string names;
    for (std::size_t i = 0; i < std::min(ranks.size(), most_named); ++i) {
        names += (i > 0 ? ", " : "") + reports_.name(ranks[i]);
    }
    if (ranks.size() > most_named) names += " and " + std::to_string(ranks.size() - most_named) + " more";
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(waited).count();
    warnings::add(names + (ranks.size() == 1 ? " has" : " have") + " not begun " + call.describe() +
                  ", in which " + reports_.self + " has waited for " + std::to_string(seconds) + " s");
}

}  // namespace collectives
