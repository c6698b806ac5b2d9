// A link: ordered, reliable messages between this rank and one peer, in both directions.
//
// Invariant: nothing here blocks. Each direction carries one message at a time, of a length both sides know;
// a link moves as many bytes as it can at each call and says how many. The caller owns all memory: what it
// passes to `write` must stay unchanged until `released` covers it. Calls come from one thread at a time.
//
// Errors: Error(peer_lost) when the peer is gone, Error(desync) when the peer's message belongs to another
// operation than the one expected here.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/export.hpp"
#include "link/frame.hpp"
#include "reduce/reduce.hpp"

namespace collectives {

// What the ranks of an operation do with its messages. A link may choose by it how it carries them.
struct Traffic {
    int ranks = 2;               // of the communicator
    std::uint32_t combined = 0;  // messages that a reduction takes at once, at most; 0: messages are copied
    bool sends = true;           // this rank sends something,
    bool receives = true;        // and receives something
    bool to_several = false;     // the same bytes go to several peers
    bool in_place = false;       // results replace what is sent

    bool operator==(const Traffic&) const = default;
};

// The operation that messages belong to; outlives its messages.
struct Context {
    Call call;
    std::uint32_t fingerprint = 0;
    Traffic traffic;

    explicit Context(const Call& c = {}) : Context(c, c.fingerprint()) {}
    Context(const Call& c, std::uint32_t f) : call(c), fingerprint(f) {}
};

// Where a message will be received.
struct Posting {
    std::uint64_t tag = 0;  // names the message, on both sides alike; never 0
    std::byte* place = nullptr;
    std::uint64_t length = 0;
    std::uint64_t replaces = 0;  // the message that is sent from there before, by its ordinal; 0: none
};

// Who is at the other end, for error messages.
struct COLLECTIVES_API Peer {
    int rank = -1;
    std::string host;

    std::string name() const;  // "rank 3 (host7)"
};

// What the next message from a peer is, as far as it tells before it is taken.
struct Announcement {
    Call call;
    std::uint64_t length = 0;  // bytes; unknown, and 0, for what belongs to a collective
    bool point_to_point = false;
};

// What links of one transport can do.
struct Capabilities {
    bool crosses_machines = false;
    bool reads_remote_memory = false;   // a receiver may take bytes where they lie in the sender's memory
    bool writes_remote_memory = false;  // and a sender may put them where they are wanted in the receiver's
    bool shares_memory = false;         // both map memory of the other one, for engines that need that
    bool encrypts = false;
    // Links carry data over the sockets of their handshakes, and sleep on them; else the control thread keeps
    // these to notice when the peer's process ends.
    bool takes_sockets = false;
    std::size_t inline_up_to = 0;  // bytes of a message that costs no more than an empty one
};

class Multicast;
class Presence;

class COLLECTIVES_API Link {
  public:
    explicit Link(Peer peer) : peer_(std::move(peer)) {}
    virtual ~Link() = default;
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    // --- sending
    // Start a message of `length` bytes; the message before is finished.
    virtual void begin(const Context& context, std::uint64_t length) = 0;
    // Take up to n of the next bytes; a message of length 0 is sent by writing 0 bytes.
    virtual std::size_t write(const std::byte* data, std::size_t n) = 0;
    // Bytes of this message whose memory the caller may change again.
    virtual std::uint64_t released() = 0;
    // The whole message is written and released.
    virtual bool finished() = 0;

    // --- receiving: a message is taken by reads, or by `lend`, but not by both
    // The next message, once it has begun to come; it stays where it is. `eager`: so many bytes of it may be
    // fetched at once.
    virtual std::optional<Announcement> announced(const Context& context, std::size_t eager) = 0;
    // Turn to the next message, which must belong to `context` and have `length` bytes.
    virtual void expect(const Context& context, std::uint64_t length) = 0;
    // Move up to n of the next bytes to `data`; `stores` says whether they are soon needed there. All n bytes
    // there are the link's, which may fill them by itself, until they have been counted by what `read`
    // returns: the caller names the same place again till then, or ends by `quiesce`, and may only name more
    // of it.
    virtual std::size_t read(std::byte* data, std::size_t n, Stores stores) = 0;
    // Look at the next bytes where they lie, without taking them: empty, or at least `unit` of them.
    virtual std::span<const std::byte> lend(std::size_t unit) = 0;
    // Take n bytes that were lent.
    virtual void consume(std::size_t n) = 0;
    // Whether `unit` bytes of the message or its end are here, as far as is known without a system call.
    virtual bool ready(std::size_t unit) = 0;
    // The whole message has been taken.
    virtual bool received() = 0;

    // --- waiting
    // Whether to sleep on descriptors; else the peer rings our doorbell.
    virtual bool uses_sockets() const { return false; }
    // For links that use sockets. Add the descriptors and events that would let this link go on, where there
    // is something to send or to receive, make sure that they will tell, and look once more: true if
    // something has come meanwhile, so that nobody must wait.
    virtual bool arm(bool /*sending*/, std::vector<pollfd>& /*polled*/) { return false; }
    // Whether what is sent passes through a network.
    virtual bool leaves_machine() const { return false; }
    // Why the peer can be counted as gone, or nullptr. Costs a system call a socket at most.
    virtual const char* lost() = 0;
    // The connection that the control thread watches has ended. Called on that thread.
    virtual void mark_lost() {}

    // The peer may go on reading what was sent, and learns that nothing more will come, and whose loss is the
    // reason, if it is.
    virtual void shut_down(std::optional<int> lost) = 0;
    virtual const char* scheme() const = 0;

    // --- destinations that are known before their messages come
    // The peer may write that message straight to its place, until `withdraw`, once it has read what the
    // message replaces. False where it cannot, or where another posting has not been withdrawn.
    virtual bool post_recv(const Posting& /*posting*/) { return false; }
    virtual void withdraw() {}
    // The operation failed. Returns, within a second or so, once nothing that the peer still does can be seen
    // in memory of the caller's: where messages were posted, or were to be read to. False where that cannot
    // be ensured. The link carries nothing any more.
    virtual bool quiesce() { return true; }
    // Where the peer has posted that message, in memory that this rank can write to, if `read` is the message
    // that is sent from there. Null where it has not, or has withdrawn it.
    virtual std::byte* window(std::uint64_t /*tag*/, std::uint64_t /*length*/, std::uint64_t /*read*/) const {
        return nullptr;
    }
    // The operation failed: what this rank announced, and the peer has not read, must not be taken for the
    // message. When this returns, a peer in this process reads nothing any more, so the memory may go.
    virtual void abandon() {}

    // --- what links of one transport share
    // Sends one message to several peers at the cost of fewer copies; null where links have nothing to share.
    // The same object for all links of the communicator that can share.
    virtual Multicast* multicast() { return nullptr; }
    // Where the peer runs, and whether it waits; null where that is unknown. Valid as long as the link.
    virtual const Presence* presence() const { return nullptr; }

    // --- comparing calls without messages; links that cannot see the peer's calls find nothing
    // Whether the peer has begun the collective of that number, or a later one.
    virtual bool has_begun(std::uint64_t /*sequence*/) const { return true; }
    // Throws if this rank and the peer have begun different collectives under one number, up to this one's.
    virtual void compare(const Call& /*mine*/) const {}
    // Throws if the peer knows of ranks that called different things.
    virtual void throw_disagreement(const Call& /*during*/) const {}

    // Bring closer what `lend` will look at first.
    virtual void prefetch() const {}

    // The peer is gone, or has given up for the loss of another rank, which is named then.
    [[noreturn]] void throw_lost(const Call& during, const std::string& why) const;
    // The peer's next message is not what this rank is in, or does not fit; `remark` says so.
    [[noreturn]] void throw_unwanted(Call mine, const Announcement& theirs, const std::string& remark) const;
    // This rank and the peer have called different things; `remark` says what else is known of that.
    [[noreturn]] void throw_desync(const Call& mine, const Call& theirs,
                                   const std::string& remark = "") const;
    // What the peer sent can't be: it counts as gone.
    [[noreturn]] void throw_refused(const Call& during, const std::string& why) const;

    const Peer& peer() const { return peer_; }
    // From any thread.
    std::uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
    // Of the buffers in which it receives.
    std::uint64_t inbox_bytes() const { return inbox_bytes_.load(std::memory_order_relaxed); }
    void count_inbox(std::uint64_t n) const { inbox_bytes_.fetch_add(n, std::memory_order_relaxed); }

  protected:
    // The rank whose loss made the peer give up, if it did and said so.
    virtual std::optional<int> blamed() const = 0;
    // This rank and the peer have called different things: peers that find this rank gone learn of it.
    virtual void report_disagreement(const Call& /*mine*/, const Call& /*theirs*/) const {}

    void count_sent(std::uint64_t n) {
        bytes_sent_.store(bytes_sent_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }
    // Of what was counted, so much was not taken and goes once more.
    void count_refused(std::uint64_t n) { count_sent(0 - n); }

  private:
    std::atomic<std::uint64_t> bytes_sent_{0};
    mutable std::atomic<std::uint64_t> inbox_bytes_{0};
    Peer peer_;
};

}  // namespace collectives
