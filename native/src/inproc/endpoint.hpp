// What one rank's links to other threads of its process go through: a channel to each peer, in memory that
// both threads use as it is.
//
// Invariant: a channel has one sender and one receiver. The sender fills slots in turn and changes a slot
// only once the receiver has finished the message in it. An endpoint lives as long as a link to it or from
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

// One message. Those up to this size are copied into the slot; a longer one is read where it lies, and its
// sender waits until it was.
inline constexpr std::size_t inproc_eager_up_to = 4 << 10;

struct alignas(cache_line) InprocSlot {
    // The message's number on its channel in the upper half, the operation's fingerprint in the lower; stored
    // last.
    std::atomic<std::uint64_t> tag{0};
    Call call;
    std::uint64_t length = 0;
    const std::byte* data = nullptr;
    std::atomic<std::uint64_t> available{0};  // bytes that the receiver may read
    std::vector<std::byte> copy;
    alignas(cache_line) std::atomic<std::uint64_t> consumed{0};  // bytes that it has read
};

struct InprocChannel {
    static constexpr std::size_t slots_per_channel = 32;

    InprocSlot& slot(std::uint64_t number) { return slots[number % slots_per_channel]; }

    std::array<InprocSlot, slots_per_channel> slots;
    alignas(cache_line) std::atomic<std::uint64_t> finished{0};  // messages that the receiver is through with
    std::atomic<bool> abandoned{false};  // the sender has failed; memory that it has announced may be gone
};

class InprocEndpoint final : public Colocation {
  public:
    InprocEndpoint(int size, std::shared_ptr<Waker> waker)
        : waker_(std::move(waker)),
          channels_(static_cast<std::size_t>(size)),
          links_(static_cast<std::size_t>(size), nullptr) {}

    // --- from any thread
    // From this rank to that one.
    InprocChannel& channel_to(int peer);
    PublishedCalls& calls() { return calls_; }
    void wake() { waker_->ring(); }
    bool is_closed() const { return closed_.load(std::memory_order_acquire); }
    int lost() const { return lost_.load(std::memory_order_acquire); }
    // Returns once this rank has ended the pass that it is in: a pass waits for nobody.
    void wait_for_pass() const;

    // --- this rank's own
    // Null where the link is gone.
    void set_link(int peer, InprocLink* link) { links_.at(static_cast<std::size_t>(peer)) = link; }

    void publish(const Call& call) override { calls_.publish(call); }
    std::optional<Call> last_collective() const override { return calls_.last_collective(); }
    std::optional<int> accuser() const override;
    void mark_closed(std::optional<int> lost) override;
    Presence* presence() override { return nullptr; }
    Doorbell* doorbell() override { return nullptr; }
    std::atomic<std::uint64_t>* passes() override { return &passes_; }
    // Peers can read and write all memory of this process, so this is ordinary memory.
    std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
    SharedMemoryUse memory() const override { return {.heap = heap_->load(std::memory_order_relaxed)}; }

  private:
    std::shared_ptr<Waker> waker_;
    // Bytes of arrays that are in use; these may live longer than the endpoint.
    std::shared_ptr<std::atomic<std::size_t>> heap_ = std::make_shared<std::atomic<std::size_t>>(0);
    std::mutex mutex_;
    std::vector<std::unique_ptr<InprocChannel>> channels_;  // by rank; made by whoever needs one first
    std::vector<InprocLink*> links_;                        // by rank
    PublishedCalls calls_{};
    std::atomic<bool> closed_{false};
    std::atomic<int> lost_{-1};
    alignas(cache_line) std::atomic<std::uint64_t> passes_{0};
};

}  // namespace collectives
