// Links between ranks that share memory: processes of one host.
//
// Short messages are sent in the line that announces them, longer ones through staging memory (eager
// protocol). Messages in shared memory are read in place, and large messages in ordinary memory by
// cross-memory attach, CMA (rendezvous protocols: the sender waits until the receiver has read).
//
// Invariant: each rank writes lines and staging memory of its own outlets, and reads those of its peers. In a
// peer's arena it changes only the count of lines that it has read, the peer's doorbell, and places that it
// owns. A line's tag is stored last and read first. Offsets from another process are checked against its
// arena before use.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "link/link.hpp"
#include "shm/arena.hpp"
#include "shm/carriage.hpp"
#include "shm/places.hpp"
#include "shm/remote.hpp"
#include "shm/staging.hpp"
#include "shm/write_grant.hpp"

namespace collectives {

class GroupMemory;

class ShmLink final : public Link {
  public:
    // `pid`: the peer's process. `grant`: allows the peer to write to this process's memory; null: it may
    // not. `memory`: that of the communicator; null: the communicator has no other links.
    ShmLink(Peer peer, int rank, std::shared_ptr<Arena> own, std::shared_ptr<Arena> theirs, pid_t pid = 0,
            WriteGrant* grant = nullptr, GroupMemory* memory = nullptr);
    ~ShmLink() override;

    void begin(const Context& context, std::uint64_t length) override;
    std::size_t write(const std::byte* data, std::size_t n) override;
    std::uint64_t released() override;
    bool finished() override;

    std::optional<Announcement> announced(const Context& context, std::size_t eager) override;
    void expect(const Context& context, std::uint64_t length) override;
    std::size_t read(std::byte* data, std::size_t n, Stores stores) override;
    std::span<const std::byte> lend(std::size_t unit) override;
    void consume(std::size_t n) override;
    bool ready(std::size_t unit) override;
    bool received() override;

    Multicast* multicast() override;
    const Presence* presence() const override { return &theirs_->presence(); }
    void prefetch() const override { __builtin_prefetch(&in_.lines[line_in_ % lines_per_link]); }

    const char* lost() override;
    void shut_down(std::optional<int> lost) override;
    const char* scheme() const override { return "shm"; }

    // Called by the control thread when the peer's socket breaks.
    void mark_lost() override { lost_.store(true, std::memory_order_release); }
    // Wakes those peers of `links` that sleep; they see everything that was stored before.
    static void wake_peers(std::span<ShmLink* const> links);

    const std::shared_ptr<Arena>& arena_of_peer() const { return theirs_; }
    const CallComparison& calls() const { return calls_; }
    void compare(const Call& mine) const override { calls_.compare(mine); }
    bool has_begun(std::uint64_t sequence) const override { return calls_.has_begun(sequence); }
    void throw_disagreement(const Call& /*during*/) const override { calls_.throw_disagreement(); }

    void abandon() override;
    // Carry all messages in this way, whatever operation they belong to.
    void fix_carriage(const Carriage& carriage) { choice_.fix(carriage); }
    // Throws if the peer has abandoned the operation, so that the bytes that were read may be wrong.
    void ensure_valid(const Call& call);

    // --- messages that are written straight to the receiver's destination
    bool post_recv(const Posting& posting) override;
    void withdraw() override;
    // If the peer may still be writing to a posted destination, its pages become private to this process.
    bool quiesce() override;
    std::byte* window(std::uint64_t tag, std::uint64_t length, std::uint64_t read) const override;
    // Announces that the next n bytes of the message are in the window. Returns the number of announced
    // bytes; does not wake the peer.
    std::size_t announce_posted(std::size_t n);

    // --- for casts, to several peers at once
    // As `write`, except that a sleeping peer is not woken: call `wake_peers` once for all peers, so that
    // their cache lines are fetched at the same time.
    std::size_t put(const std::byte* data, std::size_t n);
    // Whether the message is staged.
    bool stages(const std::byte* data, std::size_t n);
    // Whether the message uses places, which change their owner.
    bool changes_places() const { return changes_places_; }
    bool has_line();
    bool has_finished(std::uint64_t line);
    // Announces n bytes at `offset` of this rank's arena as the next bytes of the message; returns the line's
    // number. The bytes count as released unless `direct_` has them. Does not wake the peer.
    std::uint64_t announce(std::uint64_t offset, std::size_t n, Staged staged = Staged::shared,
                           std::uint32_t place = 0);
    std::uint64_t written() const { return written_; }

  private:
    // The offset that stands for bytes in the posted destination.
    static constexpr std::uint64_t where_posted = ~std::uint64_t{0};
    // With this bit an offset is an address in the sender's process.
    static constexpr std::uint64_t is_address = std::uint64_t{1} << 63;

    std::optional<int> blamed() const override;
    // Wakes the peer if it sleeps. There must be a full fence between the caller's last store and this call.
    void wake_peer();

    struct Outstanding {
        std::uint64_t line;
        std::uint64_t end;  // bytes of the message that are free once the line is finished
    };

    [[noreturn]] void throw_other_length() const;
    void report_disagreement(const Call& mine, const Call& theirs) const override {
        calls_.report(mine, theirs);
    }
    bool next_slice();
    void finish_line();
    // Goes on to the next line; `quiet`: the peer need not notice at once.
    void pass_line(bool quiet);
    // Whether the peer reads the message by CMA; its next n bytes are at `data`.
    bool is_read_by_cma(const std::byte* data, std::size_t n);
    // The peer could not read: stage the rest of the message.
    void restage_refused();
    // Reads the next n bytes by CMA from the peer's process. If that fails, refuses the line and returns
    // false.
    bool read_remote(std::byte* data, std::size_t n);
    void refuse();
    // Copies the line to `data` together with the peer. False if that fails, or the peer is still writing.
    bool read_jointly(std::byte* data);
    // Writes half of the oldest line to the peer's memory if the peer allows it.
    void help();
    // Whether the process with that id is the peer's process.
    bool is_peer(Remote& process) const;
    // Whether the peer's memory can be written to by that id, see WriteGrant.
    bool may_write_by(pid_t grant);
    // Ensures that the peer writes nothing to this process any more.
    void end_joint();
    Line& next_line();
    // A message from one rank to another begins with a line that describes it, since the receiver need not
    // know its length. False if there is no free line.
    bool head();
    void consume_head();
    // Whether this message may use `places_`, while this rank owns some.
    bool fits_places() const;
    // Bytes of the longest piece of the message.
    std::size_t longest_piece() const;
    // The memory to stage the next n bytes of the message; nullptr while the peer still reads there.
    std::byte* staging_for(std::size_t n);
    void publish(Line& line);
    std::uint64_t acknowledged();

    bool is_oversubscribed() const;

    int rank_;
    GroupMemory* memory_;
    CarriageChoice choice_;
    std::shared_ptr<Arena> own_;
    std::shared_ptr<Arena> theirs_;
    Outlet& out_;  // from this rank to the peer
    Outlet& in_;   // from the peer to this rank
    CallComparison calls_;
    Places places_;
    std::atomic<bool> lost_{false};

    // sending
    const Context* sending_ = nullptr;
    const Carriage* carriage_ = nullptr;  // of the message, unless it fits into a line
    std::uint64_t length_ = 0;
    std::uint64_t written_ = 0;
    std::uint64_t released_ = 0;
    bool started_ = false;             // at least one line of the message has been published
    bool headed_ = false;              // the message needs no head, or the head has been published
    const std::byte* data_ = nullptr;  // the message's first byte, if it is read in place
    bool refused_ = false;  // the peer could not read some memory of this process, so CMA is not used again
    Reads peer_reads_ = Reads::never;  // how the peer reads; does not change during a message
    bool helps_ = true;                // all writes to the peer's memory have succeeded so far
    pid_t writes_by_ = 0;              // the id by which this rank writes
    Remote written_to_{0};
    std::uint64_t restaged_ = 0;      // up to this byte the link itself stages the message
    std::uint64_t line_ = 0;          // lines written on this link so far
    std::uint64_t acknowledged_ = 0;  // lines that the peer has finished, as last read
    bool changes_places_ = false;     // the message uses `places_`: this rank owned some when it began
    bool waited_ = false;             // this rank has waited one pass for a place
    StagingCopy stage_;
    std::uint64_t passed_ = 0;  // bytes of staging memory that were used or skipped so far
    std::array<std::uint64_t, lines_per_link> passed_by_{};  // `passed_` after each line
    std::deque<Outstanding> direct_;

    // receiving
    const Context* expected_ = nullptr;
    std::uint64_t expected_length_ = 0;
    std::uint64_t read_ = 0;
    bool opened_ = false;                // a line of the message has been seen
    std::uint64_t line_in_ = 1;          // the line to read next
    std::uint64_t acknowledged_in_ = 0;  // lines that this rank has acknowledged
    std::span<std::byte> slice_;
    Staged staged_ = Staged::shared;  // how the slice was staged
    Remote remote_;
    WriteGrant* grant_;
    std::uint64_t address_ = 0;      // in the peer's process: the bytes to read by CMA
    std::uint64_t remote_left_ = 0;  // the number of these bytes
    bool refusing_ = false;          // the rest of this message is not read by CMA
    bool joint_ = false;             // the line is being read together with the peer
    std::unique_ptr<std::byte[]> bounce_;
    bool in_line_ = false;         // the slice is that of a line that is not finished
    std::uint32_t place_in_ = 0;   // 1 + number of the place that has the slice; 0: none
    std::byte* wanted_ = nullptr;  // the posted destination
};

}  // namespace collectives
