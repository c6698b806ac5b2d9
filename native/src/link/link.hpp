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

#include "link/frame.hpp"
#include "reduce/reduce.hpp"

namespace collectives {

// Sizes of messages that may be read out of the sender's process.
struct Pulled {
    std::uint64_t from = ~std::uint64_t{0};
    std::uint64_t below = ~std::uint64_t{0};
};

// The operation that messages belong to; outlives its messages.
struct Context {
    Call call;
    std::uint32_t fingerprint = 0;
    // Messages that may be read out of the sender's process, where that takes as long as a copy, and where it
    // takes longer, for looking up pages.
    Pulled pulled;
    Pulled pulled_slowly;
    // How messages are cut where they are staged: into so many pieces, so that who reads can begin, if these
    // are not too short for it, none longer than this.
    std::uint32_t pieces = 1;
    std::uint64_t longest_piece = ~std::uint64_t{0};
    // Messages of up to this size may lie in places of their link that change hands.
    std::uint64_t placed_up_to = 0;
    // Their senders have nothing to receive, so that they may write half of what this rank would read.
    bool joint = false;

    explicit Context(const Call& c = {}) : Context(c, c.fingerprint()) {}
    Context(const Call& c, std::uint32_t f) : call(c), fingerprint(f) {}
};

// Who is at the other end, for error messages.
struct Peer {
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

class ShmLink;

class Link {
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

    // --- receiving: a message is taken by reads, or by looks, but not by both
    // The next message, once it has begun to come; it stays where it is. `eager`: so many bytes of it may be
    // fetched at once.
    virtual std::optional<Announcement> announced(const Context& context, std::size_t eager) = 0;
    // Turn to the next message, which must belong to `context` and have `length` bytes.
    virtual void expect(const Context& context, std::uint64_t length) = 0;
    // Move up to n of the next bytes to `data`; `stores` says whether they are soon needed there.
    virtual std::size_t read(std::byte* data, std::size_t n, Stores stores) = 0;
    // Look at the next bytes where they lie, without taking them: empty, or at least `unit` of them.
    virtual std::span<const std::byte> peek(std::size_t unit) = 0;
    // Take n bytes that `peek` showed.
    virtual void consume(std::size_t n) = 0;
    // Whether `unit` bytes of the message or its end are here, as far as is known without a system call.
    virtual bool ready(std::size_t unit) = 0;
    // The whole message has been taken.
    virtual bool received() = 0;

    // --- waiting
    // Whether to sleep on descriptors; else the peer rings our doorbell.
    virtual bool uses_sockets() const { return false; }
    // Add the descriptors and events that would let this link go on, where there is something to send or to
    // receive.
    virtual void poll_for(bool /*sending*/, std::vector<pollfd>& /*polled*/) const {}
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

    // Itself, if it goes through shared memory.
    virtual ShmLink* shared_memory() { return nullptr; }
    // Bring closer what `peek` will look at first.
    virtual void prefetch() const {}

    // The peer is gone, or has given up for the loss of another rank, which is named then.
    [[noreturn]] void throw_lost(const Call& during, const std::string& why) const;
    // The peer's next message is not what this rank is in, or does not fit; `remark` says so.
    [[noreturn]] void throw_unwanted(Call mine, const Announcement& theirs, const std::string& remark) const;
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
    // This rank and the peer have called different things: to be told to whoever finds this rank gone.
    virtual void tell_disagreement(const Call& /*mine*/, const Call& /*theirs*/) const {}
    // Throws what made it give up if that was that ranks called different things, and it has said so.
    virtual void throw_disagreement(const Call& /*during*/) const {}

    // `remark` says what else is known of the peer's message.
    [[noreturn]] void throw_desync(const Call& mine, const Call& theirs,
                                   const std::string& remark = "") const;

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
