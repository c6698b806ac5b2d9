// A link over a reliable RDMA connection, by the eager protocol: the sender copies a message into a
// registered buffer, and writes it from there to the ring in the receiver's memory, with an immediate that
// announces it.
//
// A message is a sequence of records: one, if it is short, so that it costs one work request. Each record has
// a head; the first one's head says to which operation the message belongs. A reduction takes its operand
// from the ring, other messages are copied out of it. The buffer has the ring's layout, so its memory is free
// as soon as the receiver has freed that of the ring.
//
// Invariant: the device reads and writes the link's own memory only, never the caller's. So nothing of a
// caller can change after an error was reported, and `quiesce` has nothing to wait for.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/wait.hpp"
#include "link/link.hpp"
#include "verbs/device.hpp"
#include "verbs/queue_pair.hpp"
#include "verbs/ring.hpp"
#include "verbs/side_channel.hpp"

namespace collectives::verbs {

// What lies at the beginning of a record.
struct RecordHead {
    Call call;
    std::uint64_t message = 0;      // bytes of the message
    std::uint32_t fingerprint = 0;  // of the operation
    std::uint32_t ordinal = 0;      // number of the message in this direction, from 1 on; wraps around
    std::uint32_t payload = 0;      // bytes of the message that follow
    std::uint32_t part = 0;         // number of the record in its message, from 0 on
    std::uint64_t unused = 0;
};
static_assert(sizeof(RecordHead) == unit_bytes);

// This rank's end of a link that is not connected yet.
struct OwnEnd {
    std::unique_ptr<Registered> ring;
    std::unique_ptr<QueuePair> queue;

    OwnEnd(const std::shared_ptr<Device>& device, const Port& port);
    Endpoint describe() const;
};

// What a link has had the device do, from the beginning.
struct Posted {
    std::uint64_t requests = 0;  // work requests
    std::uint64_t payload = 0;   // bytes of messages
    std::uint64_t reports = 0;   // work requests that only return credits
};

class VerbsLink final : public Link {
  public:
    // Connects the queue pair. `piece`: the most bytes of a message in one record. Throws
    // Error(transport_unavailable).
    VerbsLink(Peer peer, int rank, std::unique_ptr<OwnEnd> own, const Endpoint& theirs, UniqueFd socket,
              std::size_t piece);
    // Waits until the peer has what was sent, or is gone, but not for long.
    ~VerbsLink() override;

    void begin(const Context& context, std::uint64_t length) override;
    std::size_t write(const std::byte* data, std::size_t n) override;
    std::uint64_t released() override { return written_; }
    bool finished() override { return started_ && written_ == length_; }

    std::optional<Announcement> announced(const Context& context, std::size_t eager) override;
    void expect(const Context& context, std::uint64_t length) override;
    std::size_t read(std::byte* data, std::size_t n, Stores stores) override;
    std::span<const std::byte> lend(std::size_t unit) override;
    void consume(std::size_t n) override;
    bool ready(std::size_t unit) override;
    bool received() override { return open() && read_ == expected_length_; }

    bool uses_sockets() const override { return true; }
    bool arm(bool sending, std::vector<pollfd>& polled) override;
    bool leaves_machine() const override { return true; }
    const char* lost() override;
    void shut_down(std::optional<int> lost) override;
    const char* scheme() const override { return "verbs"; }

    Posted posted() const { return {own_->queue->posted(), payload_, reports_}; }
    const QueuePair& queue() const { return *own_->queue; }

  private:
    std::optional<int> blamed() const override;

    // Take up what has arrived, and return credits that are due. Returns whether anything has arrived.
    bool progress();
    void take_up(std::uint32_t immediate, std::uint32_t bytes);
    // Return credits if that is due.
    void report();
    bool can_send() const {
        return side_.is_ready() && own_->queue->failure() == nullptr && own_->queue->has_place();
    }
    // Send one record with the next n bytes of the message. False if there is no space for it now.
    bool send_record(const std::byte* data, std::size_t n);

    // Whether the next message has begun to arrive; throws if it is not the expected one.
    bool open();
    // What has arrived and was not read of the record in front, which belongs to the message.
    std::span<const std::byte> front();
    // Whether a record is there; its head is copied, so that the peer cannot change it meanwhile.
    bool look_at_record();
    void free_record();
    std::uint64_t left() const { return expected_length_ - read_; }

    int rank_;
    std::unique_ptr<OwnEnd> own_;
    std::uint64_t ring_address_;  // the peer's
    std::uint32_t ring_key_;
    std::size_t piece_;
    Registered buffer_;
    SideChannel side_;
    bool is_silent_ = false;  // this rank has said its last
    std::string problem_;     // the peer broke the protocol

    // sending
    SendRing out_;
    const Context* sending_ = nullptr;
    std::uint32_t ordinal_ = 0;
    std::uint64_t length_ = 0;
    std::uint64_t written_ = 0;
    std::uint32_t part_ = 0;
    bool started_ = false;
    std::uint64_t payload_ = 0;
    std::uint64_t reports_ = 0;

    // receiving
    ReceiveRing in_;
    std::vector<std::uint32_t> sizes_;  // of records that have arrived, by number, modulo
    std::uint64_t records_used_ = 0;    // records whose receives have been used since the last were posted
    std::uint64_t consumed_ = 0;        // records
    std::optional<RecordHead> head_;    // of the record in front
    std::size_t offset_ = 0;            // bytes of its payload that were read
    const Context* expected_ = nullptr;
    std::uint64_t expected_length_ = 0;
    std::uint32_t ordinal_in_ = 0;
    std::uint32_t part_in_ = 0;
    std::uint64_t read_ = 0;
    bool opened_ = false;
    std::optional<Clock::time_point> ended_at_;  // the peer has closed, but not all of its records are here
};

}  // namespace collectives::verbs
