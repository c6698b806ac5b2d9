// The endpoint of one rank for links to other threads of its process: a channel to each peer, in ordinary
// memory.
//
// Invariant: a channel has one sender and one receiver. The sender fills slots in turn, and changes a slot
// only after the receiver has finished the message in it. An endpoint lives as long as any link to it or from
// it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/cpu.hpp"
#include "link/colocation.hpp"
#include "link/published_calls.hpp"
#include "link/waker.hpp"

namespace collectives {

class InprocLink;

// The largest message that is copied into its slot. A longer message is read in the sender's memory, and its
// sender waits until it was read.
inline constexpr std::size_t inproc_eager_up_to = 4 << 10;

struct alignas(cache_line) InprocSlot {
    // Upper half: the message's number on its channel; lower half: the operation's fingerprint. Stored last.
    std::atomic<std::uint64_t> tag{0};
    Call call;
    std::uint64_t length = 0;
    const std::byte* data = nullptr;
    std::atomic<std::uint64_t> available{0};  // bytes that the receiver may read
    std::vector<std::byte> copy;
    alignas(cache_line) std::atomic<std::uint64_t> consumed{0};  // bytes that the receiver has read
};

struct InprocChannel {
    static constexpr std::size_t slots_per_channel = 32;

    InprocSlot& slot(std::uint64_t number) { return slots[number % slots_per_channel]; }

    std::array<InprocSlot, slots_per_channel> slots;
    alignas(cache_line) std::atomic<std::uint64_t> finished{0};  // messages that the receiver has finished
    std::atomic<bool> abandoned{false};  // the sender has failed; memory that it has announced may be freed
};

class InprocEndpoint final : public Colocation {
  public:
    InprocEndpoint(int size, std::shared_ptr<Waker> waker)
        : waker_(std::move(waker)),
          channels_(static_cast<std::size_t>(size)),
          links_(static_cast<std::size_t>(size), nullptr) {}

    // --- from any thread
    // The channel from this rank to `peer`.
    InprocChannel& channel_to(int peer);
    PublishedCalls& calls() { return calls_; }
    void wake() { waker_->ring(); }
    bool is_closed() const { return closed_.load(std::memory_order_acquire); }
    int lost() const { return lost_.load(std::memory_order_acquire); }
    // Wait until this rank has ended its current pass over the steps, in which it never waits for others.
    void wait_for_pass() const;

    // --- for this rank only
    // Null if the link is gone.
    void set_link(int peer, InprocLink* link) { links_.at(static_cast<std::size_t>(peer)) = link; }

    void publish(const Call& call) override { calls_.publish(call); }
    std::optional<Call> last_collective() const override { return calls_.last_collective(); }
    std::optional<int> accuser() const override;
    void mark_closed(std::optional<int> lost) override;
    Presence* presence() override { return nullptr; }
    Doorbell* doorbell() override { return nullptr; }
    std::atomic<std::uint64_t>* passes() override { return &passes_; }
    // Ordinary memory, because peers can read and write all memory of this process.
    std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
    SharedMemoryUse memory() const override { return {.heap = heap_->load(std::memory_order_relaxed)}; }

  private:
    std::shared_ptr<Waker> waker_;
    // Bytes of arrays in use; arrays may live longer than the endpoint.
    std::shared_ptr<std::atomic<std::size_t>> heap_ = std::make_shared<std::atomic<std::size_t>>(0);
    std::mutex mutex_;
    std::vector<std::unique_ptr<InprocChannel>> channels_;  // by rank; made at the first use from either side
    std::vector<InprocLink*> links_;                        // by rank
    PublishedCalls calls_{};
    std::atomic<bool> closed_{false};
    std::atomic<int> lost_{-1};
    alignas(cache_line) std::atomic<std::uint64_t> passes_{0};
};

}  // namespace collectives
