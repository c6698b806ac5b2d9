#include "inproc/endpoint.hpp"

#include <sched.h>

#include <algorithm>
#include <cstdlib>

#include "base/round.hpp"
#include "inproc/link.hpp"

namespace collectives {

InprocChannel& InprocEndpoint::channel_to(int peer) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<InprocChannel>& channel = channels_.at(static_cast<std::size_t>(peer));
    if (!channel) channel = std::make_unique<InprocChannel>();
    return *channel;
}

void InprocEndpoint::wait_for_pass() const {
    const std::uint64_t seen = passes_.load(std::memory_order_seq_cst);
    while (seen % 2 != 0 && passes_.load(std::memory_order_acquire) == seen) ::sched_yield();
}

std::optional<int> InprocEndpoint::accuser() const { return accuser_among(calls_, links_); }

std::shared_ptr<std::byte> InprocEndpoint::allocate(std::size_t bytes) {
    // aligned_alloc needs a multiple of the alignment.
    const std::size_t whole = round_up(std::max<std::size_t>(bytes, 1), cache_line);
    auto* const data = static_cast<std::byte*>(std::aligned_alloc(cache_line, whole));
    if (data == nullptr) return nullptr;
    heap_->fetch_add(whole, std::memory_order_relaxed);
    return {data, [heap = heap_, whole](std::byte* given) {
                std::free(given);
                heap->fetch_sub(whole, std::memory_order_relaxed);
            }};
}

void InprocEndpoint::mark_closed(std::optional<int> lost) {
    if (lost) lost_.store(*lost, std::memory_order_relaxed);
    closed_.store(true, std::memory_order_release);
}

}  // namespace collectives
