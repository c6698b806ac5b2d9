// A link: ordered, reliable messages between this rank and one peer, in both directions.
//
// Invariant: nothing here blocks. Each direction carries one message at a time, whose length both sides know.
// Each call moves as many bytes as possible and returns their number. The caller owns all memory: bytes that
// it passes to `write` must stay unchanged until `released` counts them. Calls come from one thread at a
// time.
//
// Errors: Error(peer_lost) if the peer is gone, Error(desync) if the peer's message belongs to another
// operation than the expected one.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/export.hpp"
#include "link/frame.hpp"
#include "reduce/reduce.hpp"

namespace collectives {

// How the ranks of an operation use its messages. A link may choose by this how it carries them.
struct Traffic {
    int ranks = 2;               // of the communicator
    std::uint32_t combined = 0;  // most messages that a reduction combines; 0: messages are copied
    bool sends = true;           // this rank sends something
    bool receives = true;        // this rank receives something
    bool to_several = false;     // the same bytes go to several peers
    bool in_place = false;       // results replace what is sent

    bool operator==(const Traffic&) const = default;
};

// The operation to which messages belong; outlives its messages.
struct Context {
    Call call;
    std::uint32_t fingerprint = 0;
    Traffic traffic;

    explicit Context(const Call& c = {}) : Context(c, c.fingerprint()) {}
    Context(const Call& c, std::uint32_t f) : call(c), fingerprint(f) {}
};

// The memory in which a message will be received.
struct Posting {
    std::uint64_t tag = 0;  // identifies the message, the same on both sides; never 0
    std::byte* place = nullptr;
    std::uint64_t length = 0;
    std::uint64_t replaces = 0;  // ordinal of the message that is sent from this memory before; 0: none
};

// Who is at the other end, for error messages.
struct COLLECTIVES_API Peer {
    int rank = -1;
    std::string host;
    std::string self{};  // the name of this rank; empty if it is not known

    std::string name() const;  // "rank 3 (host7)"
};

// What is known of the next message from a peer before it is received.
struct Announcement {
    Call call;
    std::uint64_t length = 0;  // bytes; 0, for unknown, if the message belongs to a collective
    bool point_to_point = false;
};

// What links of one transport can do.
struct Capabilities {
    bool crosses_machines = false;
    bool reads_remote_memory = false;   // a receiver may read bytes in the sender's memory
    bool writes_remote_memory = false;  // a sender may write bytes into the receiver's memory
    bool shares_memory = false;         // both ranks map memory of each other, which some engines need
    bool encrypts = false;
    // Links carry data over the sockets of their handshakes, and sleep on them. Otherwise the control thread
    // keeps these sockets, to notice when the peer's process ends.
    bool takes_sockets = false;
    // Links register callers' memory with a device, and gain if it is announced (link/lasting_memory.hpp).
    bool registers_memory = false;
    std::size_t inline_up_to = 0;  // bytes of a message that costs no more than an empty one
};

// What a link has done, by a name of the transport's.
struct LinkCount {
    const char* name = "";
    std::uint64_t value = 0;
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
    // Start a message of `length` bytes; the previous message must be finished.
    virtual void begin(const Context& context, std::uint64_t length) = 0;
    // Send up to n of the next bytes; a message of length 0 is sent by writing 0 bytes.
    virtual std::size_t write(const std::byte* data, std::size_t n) = 0;
    // Bytes of this message whose memory the caller may change again.
    virtual std::uint64_t released() = 0;
    // Whether the whole message is written and released.
    virtual bool finished() = 0;

    // --- receiving: a message is received by `read`, or by `lend` and `consume`, but not by both
    // The next message, if its beginning has arrived; nothing of it is received by this. `eager`: the number
    // of its bytes that may be fetched at once.
    virtual std::optional<Announcement> announced(const Context& context, std::size_t eager) = 0;
    // Turn to the next message, which must belong to `context` and have `length` bytes.
    virtual void expect(const Context& context, std::uint64_t length) = 0;
    // Move up to n of the next bytes to `data`; `stores` tells whether they are needed there soon. The link
    // may fill these n bytes of memory by itself, until `read` has counted them in its result. Until then the
    // caller passes the same memory again, of which it may pass more, or ends by `quiesce`.
    virtual std::size_t read(std::byte* data, std::size_t n, Stores stores) = 0;
    // The next bytes in the link's memory, without receiving them: empty, or at least `unit` bytes.
    virtual std::span<const std::byte> lend(std::size_t unit) = 0;
    // Receive n bytes that were lent.
    virtual void consume(std::size_t n) = 0;
    // Whether `unit` bytes of the message or its end have arrived, as far as is known without a system call.
    virtual bool ready(std::size_t unit) = 0;
    // Whether the whole message has been received.
    virtual bool received() = 0;

    // --- waiting
    // Whether this rank sleeps on descriptors of this link; otherwise the peer rings this rank's doorbell.
    virtual bool uses_sockets() const { return false; }
    // For links that use sockets, if there is something to send or to receive: add the descriptors and events
    // that let this link go on, make sure that they will fire, and check once more. Returns true if something
    // has arrived meanwhile, so that the rank must not sleep.
    virtual bool arm(bool /*sending*/, std::vector<pollfd>& /*polled*/) { return false; }
    // Whether sent messages go through a network.
    virtual bool leaves_machine() const { return false; }
    // The reason for which the peer counts as gone, or nullptr. Makes at most two system calls for
    // each socket.
    virtual const char* lost() = 0;
    // The connection that the control thread watches has ended. Called on the control thread.
    virtual void mark_lost() {}

    // Tell the peer that nothing more will be sent, and, if the loss of a rank is the reason, which rank. The
    // peer may go on to read what was sent.
    virtual void shut_down(std::optional<int> lost) = 0;
    virtual const char* scheme() const = 0;

    // --- destinations that are published before their messages arrive
    // Allow the peer to write that message straight to its destination, until `withdraw`, after it has read
    // the message that is sent from there. Returns false if it cannot, or if another posting has not been
    // withdrawn.
    virtual bool post_recv(const Posting& /*posting*/) { return false; }
    virtual void withdraw() {}
    // The operation failed. Returns, within about a second, when nothing that the peer still does can change
    // the caller's memory: destinations that were posted, or passed to `read`. Returns false if that cannot
    // be ensured. The link carries no more messages.
    virtual bool quiesce() { return true; }
    // The destination that the peer has posted for that message, in memory that this rank can write to, if
    // `read` is the ordinal of the message that is sent from there. Null if the peer has posted none, or has
    // withdrawn it.
    virtual std::byte* window(std::uint64_t /*tag*/, std::uint64_t /*length*/, std::uint64_t /*read*/) const {
        return nullptr;
    }
    // The operation failed: keep the peer from accepting announced memory that it has not read yet as the
    // message. When this returns, a peer in this process reads nothing any more, so the memory may be freed.
    virtual void abandon() {}

    // --- objects that links of one transport share
    // Sends one message to several peers with fewer copies; null if the links cannot do that. All links of
    // the communicator that can share copies return the same object.
    virtual Multicast* multicast() { return nullptr; }
    // The peer's core, and whether it waits; null if unknown. Valid as long as the link.
    virtual const Presence* presence() const { return nullptr; }

    // --- comparing calls without messages; without effect for links that cannot see the peer's calls
    // Whether the peer has begun the collective of that number, or a later one.
    virtual bool has_begun(std::uint64_t /*sequence*/) const { return true; }
    // Throws if this rank and the peer have begun different collectives under the same number, up to `mine`.
    virtual void compare(const Call& /*mine*/) const {}
    // Throws if the peer knows of ranks that called different operations.
    virtual void throw_disagreement(const Call& /*during*/) const {}

    // Prefetch the memory that `lend` will read first.
    virtual void prefetch() const {}

    // Throws: the peer is gone, or has given up because another rank was lost; that rank is named then.
    [[noreturn]] void throw_lost(const Call& during, const std::string& why) const;
    // Throws: the peer's next message belongs to another call than this rank's, or does not fit. `remark` has
    // the reason.
    [[noreturn]] void throw_unwanted(Call mine, const Announcement& theirs, const std::string& remark) const;
    // What is raised if this rank and the peer have called different operations. `remark` has what else is
    // known.
    Error desync(const Call& mine, const Call& theirs, const std::string& remark, Finder finder) const;
    // Throws: this rank has found that it and the peer have called different operations.
    [[noreturn]] void throw_desync(const Call& mine, const Call& theirs,
                                   const std::string& remark = "") const;
    // Throws: the peer has sent something invalid, so it counts as gone.
    [[noreturn]] void throw_refused(const Call& during, const std::string& why) const;

    const Peer& peer() const { return peer_; }
    // From any thread.
    std::uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
    // What a transport counts of its links besides these bytes, from the beginning. From any thread.
    virtual std::vector<LinkCount> counts() const { return {}; }
    // From which port of this rank to which one of the peer's, if the transport uses ports. From any thread.
    virtual std::string path() const { return {}; }
    // Bytes of the buffers in which the link receives.
    std::uint64_t inbox_bytes() const { return inbox_bytes_.load(std::memory_order_relaxed); }
    void count_inbox(std::uint64_t n) const { inbox_bytes_.fetch_add(n, std::memory_order_relaxed); }

  protected:
    // The rank whose loss made the peer give up, if the peer has reported one.
    virtual std::optional<int> blamed() const = 0;
    // Record that this rank and the peer have called different operations, for peers that find this rank
    // gone.
    virtual void report_disagreement(const Call& /*mine*/, const Call& /*theirs*/) const {}

    void count_sent(std::uint64_t n) {
        bytes_sent_.store(bytes_sent_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }
    // n of the counted bytes were refused, and are sent again.
    void count_refused(std::uint64_t n) { count_sent(0 - n); }

  private:
    std::atomic<std::uint64_t> bytes_sent_{0};
    mutable std::atomic<std::uint64_t> inbox_bytes_{0};
    Peer peer_;
};

}  // namespace collectives
