// Links between ranks that share memory: processes of one host.
//
// Short messages travel in the line that announces them, longer ones by the eager protocol through staging
// memory. Messages in shared memory are read where they lie, and large ones in ordinary memory by
// cross-memory attach (CMA): the rendezvous protocols, in which the sender waits until the receiver has read.
//
// Invariant: each rank writes its own outlets' lines and staging and reads its peers'. In a peer's arena it
// changes the count of lines that it has consumed, the peer's doorbell, and places that it owns. A line's tag
// is stored last and read first. Offsets from another process are checked against its arena before use.
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
    // `pid`: the peer's process. `grant`: by which the peer may write to this process's memory; null: it may
    // not. `memory`: the communicator's; null: it has no other links.
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
    // Wakes those peers of `links` that sleep; what was stored before is visible to them.
    static void wake_peers(std::span<ShmLink* const> links);

    const std::shared_ptr<Arena>& arena_of_peer() const { return theirs_; }
    const CallComparison& calls() const { return calls_; }
    void compare(const Call& mine) const override { calls_.compare(mine); }
    bool has_begun(std::uint64_t sequence) const override { return calls_.has_begun(sequence); }
    void throw_disagreement(const Call& /*during*/) const override { calls_.throw_disagreement(); }

    void abandon() override;
    // Carry all messages like that, whatever operation they belong to.
    void fix_carriage(const Carriage& carriage) { choice_.fix(carriage); }
    // Throws if the peer has abandoned the operation, so that what was read may be anything.
    void ensure_valid(const Call& call);

    // --- messages that are written where the receiver wants them
    bool post_recv(const Posting& posting) override;
    void withdraw() override;
    // The peer may still be writing where a message was posted: the pages become private to this process.
    bool quiesce() override;
    std::byte* window(std::uint64_t tag, std::uint64_t length, std::uint64_t read) const override;
    // Announces that the next n bytes of the message lie in the window. How many of them; wakes nobody.
    std::size_t announce_posted(std::size_t n);

    // --- for casts, to several peers at once
    // As `write`, except that a sleeping peer is not woken: call `wake_peers` once for all peers, so that
    // their cache lines are fetched at the same time.
    std::size_t put(const std::byte* data, std::size_t n);
    // Whether the message goes through staging memory.
    bool stages(const std::byte* data, std::size_t n);
    // Whether it goes through places that change their owner.
    bool changes_places() const { return changes_places_; }
    bool has_line();
    bool has_finished(std::uint64_t line);
    // Announces n bytes at `offset` of this rank's arena as the next bytes of the message; returns the line's
    // number. They count as released unless `direct_` has them. Wakes nobody.
    std::uint64_t announce(std::uint64_t offset, std::size_t n, Staged staged = Staged::shared,
                           std::uint32_t place = 0);
    std::uint64_t written() const { return written_; }

  private:
    // The offset of bytes that lie where the receiver has posted.
    static constexpr std::uint64_t where_posted = ~std::uint64_t{0};
    // With this bit an offset is an address in the sender's process.
    static constexpr std::uint64_t is_address = std::uint64_t{1} << 63;

    std::optional<int> blamed() const override;
    // A full fence has to stand between what was stored and this call, which looks whether the peer sleeps.
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
    // Goes on to the next line; `quiet`: the peer need not know at once.
    void pass_line(bool quiet);
    // Whether the peer reads the message, n more bytes of which are at `data`, out of this process.
    bool is_read_by_cma(const std::byte* data, std::size_t n);
    // The peer could not read: go on from there by staging.
    void restage_refused();
    // Reads the next n bytes out of the peer's process. False if that fails: then the line is refused.
    bool read_remote(std::byte* data, std::size_t n);
    void refuse();
    // Reads the line to `data` together with the peer. False if that fails, or the peer is still writing.
    bool read_jointly(std::byte* data);
    // Writes half of the oldest line to the peer's memory if the peer allows it.
    void help();
    // Whether the process with that id is the peer's.
    bool is_peer(Remote& process) const;
    // Whether the peer's memory can be written to by that id, see WriteGrant.
    bool may_write_by(pid_t grant);
    // Makes sure that the peer writes nothing to this process any more.
    void end_joint();
    Line& next_line();
    // A message from one rank to another begins with a line that describes it, since the receiver need not
    // know its length. False as long as there is no free line.
    bool head();
    void consume_head();
    // Whether this message goes through `places_` while this rank owns some.
    bool fits_places() const;
    // The longest piece of it.
    std::size_t longest_piece() const;
    // Where to stage the next n bytes of the message; nullptr while the peer still reads there.
    std::byte* staging_for(std::size_t n);
    void publish(Line& line);
    std::uint64_t acknowledged();

    bool is_oversubscribed() const;

    int rank_;
    GroupMemory* memory_;
    CarriageChoice choice_;
    std::shared_ptr<Arena> own_;
    std::shared_ptr<Arena> theirs_;
    Outlet& out_;  // ours to them
    Outlet& in_;   // theirs to us
    CallComparison calls_;
    Places places_;
    std::atomic<bool> lost_{false};

    // sending
    const Context* sending_ = nullptr;
    const Carriage* carriage_ = nullptr;  // of the message, where that is not inline
    std::uint64_t length_ = 0;
    std::uint64_t written_ = 0;
    std::uint64_t released_ = 0;
    bool started_ = false;             // at least one line of the message is out
    bool headed_ = false;              // it needs no head, or that is out
    const std::byte* data_ = nullptr;  // the message's first byte, if it is read where it lies
    bool refused_ = false;  // the peer could not read some memory of ours, so it is not asked again
    Reads peer_reads_ = Reads::never;  // as of the message's beginning: who asks how it goes may rely on it
    bool helps_ = true;                // the peer's memory could be written to so far,
    pid_t writes_by_ = 0;              // by this id
    Remote written_to_{0};
    std::uint64_t restaged_ = 0;      // up to here the message is staged by the link itself
    std::uint64_t line_ = 0;          // lines written on this link so far
    std::uint64_t acknowledged_ = 0;  // as last seen
    bool changes_places_ = false;     // the message fits `places_`, some of which were ours when it began
    bool waited_ = false;             // a turn, for one of them
    StagingCopy stage_;
    std::uint64_t passed_ = 0;  // bytes of staging memory used, and passed over, so far
    std::array<std::uint64_t, lines_per_link> passed_by_{};  // as of each line
    std::deque<Outstanding> direct_;

    // receiving
    const Context* expected_ = nullptr;
    std::uint64_t expected_length_ = 0;
    std::uint64_t read_ = 0;
    bool opened_ = false;                // a line of the message has been seen
    std::uint64_t line_in_ = 1;          // the line to read next
    std::uint64_t acknowledged_in_ = 0;  // lines we have acknowledged
    std::span<std::byte> slice_;
    Staged staged_ = Staged::shared;  // how it came there
    Remote remote_;
    WriteGrant* grant_;
    std::uint64_t address_ = 0;      // in the peer's process: what comes after `slice_`,
    std::uint64_t remote_left_ = 0;  // so many bytes
    bool refusing_ = false;          // of this message nothing is read there any more
    bool joint_ = false;             // the line is being read together with the peer
    std::unique_ptr<std::byte[]> bounce_;
    bool in_line_ = false;         // the slice lies in a line we have not finished
    std::uint32_t place_in_ = 0;   // 1 + the place in which it lies; 0: none
    std::byte* wanted_ = nullptr;  // where the posted message is to lie
};

}  // namespace collectives
