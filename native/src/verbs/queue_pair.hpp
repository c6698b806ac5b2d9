// A reliable connection to one peer: its queue pair, with a completion queue and a completion channel of its
// own. So links share nothing, and a link that is idle costs no poll.
//
// Invariant: nothing is posted before `connect` has returned, since a request that a queue pair refuses may
// be carried out later. The work requests in the send queue are counted here: the queue's own depth is
// rounded up by drivers, which free places only when a later request is signalled. The completion queue has
// room for all that can be outstanding. Destroying the queue pair (`end`) ends all writes, in both
// directions; no other state does, since bytes may still land after an error, and after a reset.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/function_ref.hpp"
#include "verbs/device.hpp"
#include "verbs/endpoint.hpp"
#include "verbs/port.hpp"
#include "verbs/settings.hpp"

namespace collectives::verbs {

// An RDMA write, with immediate unless it is silent.
struct Write {
    std::array<abi::Segment, 2> from{};  // of this rank's memory, one after the other
    int segments = 0;
    std::uint64_t address = 0;  // of the peer's memory
    std::uint32_t key = 0;
    std::uint32_t immediate = 0;
    bool is_signalled = false;  // `completed` counts it as soon as the peer has it
    bool is_silent = false;     // without immediate: the peer notices nothing, and needs no receive

    void add(std::span<const std::byte> bytes, std::uint32_t local_key) {
        from[static_cast<std::size_t>(segments++)] = {reinterpret_cast<std::uintptr_t>(bytes.data()),
                                                      static_cast<std::uint32_t>(bytes.size()), local_key};
    }
};

class QueuePair {
  public:
    // With `receives` posted receives, which take no bytes. Throws Error(transport_unavailable).
    QueuePair(std::shared_ptr<Device> device, Port port, std::uint32_t sends, std::uint32_t receives);
    QueuePair(const QueuePair&) = delete;
    QueuePair& operator=(const QueuePair&) = delete;
    ~QueuePair();

    const std::shared_ptr<Device>& device() const { return device_; }
    const Port& port() const { return port_; }
    std::uint32_t number() const { return pair_->number; }
    std::uint32_t first_packet() const { return first_packet_; }
    std::uint32_t inline_up_to() const { return inline_up_to_; }

    // Connect to the queue pair of `peer`. Takes more than a second if the peer's address does not answer.
    // Throws Error(transport_unavailable).
    void connect(const Endpoint& theirs, const std::string& peer, const Settings& settings);
    // Nothing is written any more, to this rank's memory or to the peer's, when this returns. The connection
    // has failed then.
    void end();

    // Whether the send queue has a place.
    bool has_place() const { return posted_ - completed_ < sends_; }
    // Post a write; there must be a place for it. Its memory may change once the peer has it, and at once if
    // all of it is inline.
    void post(const Write& write);

    // Take up completions; calls `arrived` with the immediate and the number of bytes of each write of the
    // peer. Returns whether there were any.
    bool poll(FunctionRef<void(std::uint32_t immediate, std::uint32_t bytes)> arrived);
    // Post used receives again, if there are enough of them; returns how many were posted.
    std::uint32_t repost();

    // Make the descriptor readable at the next completion. The caller polls once more after this.
    void arm();
    int descriptor() const { return channel_->descriptor; }

    // Whether the peer has all that was written up to the last signalled request.
    bool is_flushed() const { return completed_ >= signalled_; }
    // Why the connection has failed; null if it works.
    const char* failure() const { return failure_.empty() ? nullptr : failure_.c_str(); }
    std::uint64_t posted() const { return posted_; }        // work requests, from the beginning
    std::uint64_t completed() const { return completed_; }  // of these, as far as is known
    std::uint64_t taken_up() const { return taken_up_; }    // completions, of both directions

  private:
    void post_receives(std::uint32_t n);
    void modify(abi::QueuePairAttributes& attributes, int mask, const std::string& what);
    void fail(const abi::Completion& completion);
    void destroy();

    std::shared_ptr<Device> device_;
    Port port_;
    std::uint32_t sends_;
    abi::Channel* channel_ = nullptr;
    abi::CompletionQueue* completions_ = nullptr;
    abi::QueuePair* pair_ = nullptr;
    std::uint32_t first_packet_;
    std::uint32_t inline_up_to_ = 0;
    std::string peer_;  // "rxe1 port 1 of rank 1", for messages

    std::uint64_t posted_ = 0;
    std::uint64_t completed_ = 0;
    std::uint64_t signalled_ = 0;  // the last request that is signalled
    std::uint64_t taken_up_ = 0;
    std::uint32_t used_receives_ = 0;
    bool armed_ = false;
    std::uint32_t events_ = 0;  // that are not acknowledged
    std::string failure_;
    bool has_cause_ = false;  // `failure_` is more than "flushed"
};

}  // namespace collectives::verbs
