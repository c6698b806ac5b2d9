#include "core/in_flight.hpp"

#include <algorithm>

#include "schedule/program.hpp"

namespace collectives {

namespace {

bool overlap(const std::byte* a, std::uint64_t a_bytes, const std::byte* b, std::uint64_t b_bytes) {
    const auto from_a = reinterpret_cast<std::uintptr_t>(a);
    const auto from_b = reinterpret_cast<std::uintptr_t>(b);
    return a_bytes > 0 && b_bytes > 0 && from_a < from_b + b_bytes && from_b < from_a + a_bytes;
}

}  // namespace

void InFlight::begin(std::size_t engine, std::unique_ptr<Task> task,
                     std::span<const std::unique_ptr<InFlight>> earlier) {
    engine_ = engine;
    task_ = std::move(task);
    hold(false);
    error_ = nullptr;
    turns_.clear();
    const auto last = std::find_if(earlier.rbegin(), earlier.rend(),
                                   [&](const auto& other) { return shares_memory_with(*other); });
    behind_ = last == earlier.rend() ? nullptr : last->get();
    task_->begin(request_, {.alone = earlier.empty(), .owns_memory = behind_ == nullptr});
    if (!earlier.empty()) take_turns(earlier);
}

std::unique_ptr<Task> InFlight::end() {
    abandon();
    task_->end();
    return std::move(task_);
}

bool InFlight::shares_memory_with(const InFlight& other) const {
    const Request& a = request_;
    const Request& b = other.request_;
    if (a.generalized != nullptr || b.generalized != nullptr) return true;  // memory unknown
    const std::uint64_t a_in = a.in == nullptr ? 0 : a.operation->in_bytes();
    const std::uint64_t a_out = a.out == nullptr ? 0 : a.operation->out_bytes();
    const std::uint64_t b_in = b.in == nullptr ? 0 : b.operation->in_bytes();
    const std::uint64_t b_out = b.out == nullptr ? 0 : b.operation->out_bytes();
    return overlap(a.out, a_out, b.out, b_out) || overlap(a.out, a_out, b.in, b_in) ||
           overlap(a.in, a_in, b.out, b_out);
}

void InFlight::take_turns(std::span<const std::unique_ptr<InFlight>> earlier) {
    Channels* const own = task_->channels();
    if (own == nullptr) return;
    const auto uses = [](const InFlight& other, std::uint32_t channel) {
        Channels* const theirs = other.task_->channels();
        return theirs != nullptr &&
               std::ranges::binary_search(theirs->uses(), channel, {}, &ChannelUse::channel);
    };
    for (const ChannelUse& use : own->uses()) {
        // Only the last operation that uses the channel matters: it waits for all before it.
        const auto ahead = std::find_if(earlier.rbegin(), earlier.rend(),
                                        [&](const auto& other) { return uses(*other, use.channel); });
        if (ahead == earlier.rend() || (*ahead)->task_->channels()->is_through_with(use.channel)) continue;
        turns_.push_back({ahead->get(), use.channel, use.first});
        own->block(use.first);
    }
}

void InFlight::look_at_turns(const InFlight* gone) {
    Channels* const own = task_->channels();
    // The task may have found meanwhile that it uses no links.
    if (own == nullptr) return turns_.clear();
    std::erase_if(turns_, [&](const Turn& turn) {
        if (turn.ahead != gone) {
            // If the operation ahead uses no links after all, it does not wait for operations before it,
            // which may still use the channel. All of them are over when it is over.
            Channels* const ahead = turn.ahead->task_->channels();
            if (ahead == nullptr || !ahead->is_through_with(turn.channel)) return false;
        }
        own->unblock(turn.step);
        return true;
    });
}

void InFlight::forget(const InFlight* other) {
    if (!turns_.empty()) look_at_turns(other);
    if (behind_ == other) behind_ = nullptr;
}

bool InFlight::progress() {
    if (!turns_.empty()) look_at_turns();
    if (waits_for_links_ || is_blocked()) return false;
    return task_->progress();
}

void InFlight::awaited(std::vector<Awaited>& result) {
    if (is_blocked() || complete()) return;
    if (!waits_for_links_) return task_->awaited(result);
    for (const int peer : request_.operation->program().peers) {
        if (request_.links[static_cast<std::size_t>(peer)] == nullptr) result.push_back({peer, false});
    }
}

bool InFlight::waits_for(Task::PeerTest test) {
    if (is_blocked() || complete()) return false;
    if (!waits_for_links_) return task_->waits_for(test);
    return std::ranges::any_of(request_.operation->program().peers, [&](int peer) {
        return request_.links[static_cast<std::size_t>(peer)] == nullptr && test(peer);
    });
}

bool InFlight::uses_sockets() {
    if (!sockets_) {
        sockets_ = std::ranges::any_of(request_.operation->program().peers, [&](int peer) {
            const Link* const to = request_.links[static_cast<std::size_t>(peer)];
            return to != nullptr && to->uses_sockets();
        });
    }
    return *sockets_;
}

}  // namespace collectives
