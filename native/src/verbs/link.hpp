// A link over a reliable RDMA connection. Short messages go by the eager protocol, long ones by rendezvous.
//
// Eager: the sender copies a message into a registered buffer, and writes it from there to the ring in the
// receiver's memory, with an immediate that announces it. A message is a sequence of records: one, if it is
// short, so that it costs one work request. Each record has a head; the first one's head says to which
// operation the message belongs. A reduction takes its operand from the ring, other messages are copied out
// of it. The buffer has the ring's layout, so its memory is free as soon as the receiver has freed that of
// the ring.
//
// Rendezvous: the sender sends the first record without payload, and waits for the receiver's grant. If the
// receiver copies the message, the grant has the address and the key of the destination, into which the
// sender writes pieces, each with an immediate. If the receiver reduces it, the message goes through the
// ring. Either way the device reads the sender's memory if that is registered; if it is not, the message is
// copied to the buffer. The receiver grants a message only after all earlier ones have arrived, so of one
// message at a time.
//
// A message that is copied counts as sent before the peer has it. If it gets lost, the sender may never look
// at this link again: a rank that waits for the peer finds that out by writes of no bytes (`probe`), which
// the peer's device acknowledges.
//
// Invariant: a peer can write only to the ring, and to the destination of the message that is being received,
// up to the byte that was granted. After an error `quiesce` ends the connection if any of that has not come,
// or if the device still reads the caller's memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/wait.hpp"
#include "link/link.hpp"
#include "verbs/device.hpp"
#include "verbs/grant.hpp"
#include "verbs/queue_pair.hpp"
#include "verbs/regions.hpp"
#include "verbs/ring.hpp"
#include "verbs/settings.hpp"
#include "verbs/side_channel.hpp"
#include "verbs/tuning.hpp"

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
    Settings settings;
    std::unique_ptr<Registered> ring;  // and the places of grants behind it
    std::unique_ptr<QueuePair> queue;

    OwnEnd(const std::shared_ptr<Device>& device, const Port& port, const Settings& settings);
    Endpoint describe() const;
};

// Bytes of its own memory that a link registers.
std::size_t registered_bytes();

// The most bytes of a message that one work request carries.
struct Pieces {
    std::size_t of_record = record_bytes - sizeof(RecordHead);
    std::size_t straight = piece_bytes;
};

// What a link has had the device do, and what it has copied, from the beginning. From any thread.
struct Posted {
    std::uint64_t requests = 0;  // work requests
    std::uint64_t payload = 0;   // bytes of messages
    std::uint64_t straight = 0;  // of these, written straight to their destination
    std::uint64_t reports = 0;   // work requests that only return credits
    std::uint64_t grants = 0;    // work requests that only answer a long message
    std::uint64_t probes = 0;    // further work requests, that only ask whether the peer's device answers
    std::uint64_t copied = 0;    // bytes of messages, sent and received, that the processor has copied
};

// Until when the links of a communicator that has given up may wait for peers to take what was sent to them:
// the first one that is told to `quiesce` says so, since they are told one after the other.
struct GivingUp {
    std::optional<Deadline> deadline;
};

class VerbsLink final : public Link {
  public:
    // Connects the queue pair. `giving_up` stays longer than the link. Throws Error(transport_unavailable).
    VerbsLink(Peer peer, int rank, std::unique_ptr<OwnEnd> own, const Endpoint& theirs, UniqueFd socket,
              GivingUp& giving_up, const Pieces& pieces = {});
    // Waits until the peer has what was sent, or is gone, but not for long.
    ~VerbsLink() override;

    void begin(const Context& context, std::uint64_t length) override;
    std::size_t write(const std::byte* data, std::size_t n) override;
    std::uint64_t released() override;
    bool finished() override { return started_ && written_ == length_ && released() == length_; }

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
    bool quiesce() override;
    const char* scheme() const override { return "verbs"; }
    std::vector<LinkCount> counts() const override;
    std::string path() const override { return path_; }

    Posted posted() const;
    const QueuePair& queue() const { return *own_->queue; }

  private:
    std::optional<int> blamed() const override;

    // Take up what has arrived, and return credits that are due. Returns whether anything has arrived.
    bool progress();
    void take_up(std::uint32_t immediate, std::uint32_t bytes);
    bool take_grant(std::uint32_t bytes);
    // Return credits if that is due, and the peer is still there.
    void report();
    // This rank waits for the peer: from time to time, find out whether the path still works.
    void probe();
    bool can_send() const {
        return side_.is_ready() && own_->queue->failure() == nullptr && own_->queue->has_place();
    }
    void post(Write& write, Carried carried);
    // Wait until the peer has what was sent, or is gone.
    void flush(const Deadline& deadline);

    // --- sending
    std::size_t write_long(const std::byte* data, std::size_t n);
    // The receiver's answer to the message that is being sent; null if there is none yet.
    const Grant* answer() const;
    // Send one record with the next n bytes of the message. False if there is no space for it now.
    bool send_record(const std::byte* data, std::size_t n);
    // Write the next n bytes of the message to their destination. False if that is not possible now.
    bool send_piece(const Grant& grant, const std::byte* data, std::size_t n);
    // n bytes of the message were posted, to be read from the caller's memory, which stays in use until then.
    void note_posted(std::size_t n, bool from_caller);

    // --- receiving
    // Tell the sender of a long message where the bytes go that are before byte `end` of it; null: to the
    // ring.
    void grant(std::byte* message, std::uint64_t end);
    bool send_grant(std::uint64_t address, std::uint64_t end);
    // Whether the next message has begun to arrive; throws if it is not the expected one.
    bool open();
    // What has arrived and was not read of the record in front, which belongs to the message.
    std::span<const std::byte> front();
    // Whether a record is there; its head is copied, so that the peer cannot change it meanwhile.
    bool look_at_record();
    void free_record();
    std::uint64_t left() const { return expected_length_ - read_; }
    // n more bytes of the message have been read. The last ones end its grant, by which they need not have
    // come: the sender may have sent the message through the ring all the same.
    void note_read(std::size_t n);
    void end_grant();

    // Written by the thread that runs operations.
    struct Counter {
        std::atomic<std::uint64_t> value{0};
        void add(std::uint64_t n) {
            value.store(value.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
        }
        std::uint64_t get() const { return value.load(std::memory_order_relaxed); }
    };
    struct Counters {
        Counter requests, payload, straight, reports, grants, probes, copied;
    };
    // A work request that reads the caller's memory, and the byte of the message up to which it does.
    struct InUse {
        std::uint64_t request = 0;
        std::uint64_t end = 0;
    };

    int rank_;
    std::unique_ptr<OwnEnd> own_;
    std::shared_ptr<Regions> regions_;
    std::uint64_t ring_address_;  // the peer's
    std::size_t ring_bytes_;      // the peer's; the places of grants follow
    std::uint32_t ring_key_;
    std::uint32_t slots_;  // the peer's
    Pieces pieces_;
    std::string path_;   // "rxe0 port 1 to rxe1 port 1"
    std::string ended_;  // why the peer is lost if its process has ended
    Registered buffer_;  // for records, then for grants
    SideChannel side_;
    GivingUp& giving_up_;
    bool is_silent_ = false;        // this rank has said its last
    std::string problem_;           // the peer broke the protocol
    std::uint64_t heard_ = 0;       // completions when this rank last asked whether the peer is lost
    Clock::time_point heard_at_{};  // since then there was none
    Clock::time_point asked_at_{};
    Counters counters_;

    // sending
    SendRing out_;
    std::uint64_t asks_from_;  // the peer answers messages of so many bytes
    const Context* sending_ = nullptr;
    std::uint32_t ordinal_ = 0;
    std::uint64_t length_ = 0;
    std::uint64_t written_ = 0;
    std::uint64_t released_ = 0;
    std::uint32_t part_ = 0;
    bool started_ = false;
    bool has_source_ = false;               // `source_` is known
    std::shared_ptr<const Region> source_;  // of the message; null: it has to be copied
    std::deque<InUse> in_use_;
    Grant granted_;  // the last one of the peer
    std::uint64_t grants_received_ = 0;

    // receiving
    ReceiveRing in_;
    std::vector<std::uint32_t> sizes_;  // of records that have arrived, by number, modulo
    std::uint64_t slots_used_ = 0;      // by the peer, since the last receives were posted
    std::uint64_t consumed_ = 0;        // records
    std::optional<RecordHead> head_;    // of the record in front
    std::size_t offset_ = 0;            // bytes of its payload that were read
    const Context* expected_ = nullptr;
    std::uint64_t expected_length_ = 0;
    std::uint32_t ordinal_in_ = 0;
    std::uint32_t part_in_ = 0;
    std::uint64_t read_ = 0;
    bool opened_ = false;
    bool waits_for_answer_ = false;              // the sender does
    std::shared_ptr<const Region> destination_;  // of the message
    std::uint64_t grants_sent_ = 0;
    std::uint64_t granted_end_ = 0;  // byte up to which the peer may write the message to its destination
    std::uint64_t straight_ = 0;     // byte up to which it has come there
    std::optional<Clock::time_point> ended_at_;  // the peer has closed, but not all that it sent is here
};

}  // namespace collectives::verbs
