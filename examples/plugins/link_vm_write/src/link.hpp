// A link that writes every byte of a message from the sender's array to where the receiver wants it, by one
// copy that the kernel makes.
//
// The receiver posts a landing as soon as it knows one: for `read` the caller's memory, for `lend` a buffer
// of the link. The sender writes there, and then moves the watermark. A rank that sleeps arms its peer, which
// then sends a byte over the socket of the handshake.
//
// Invariant: a rank writes to its peer only while `Block::writes` is odd, and after it has seen there that
// the peer has not revoked. So who has revoked, and has seen an even number since, is not written to any
// more. To revoke is the last thing that a rank writes.
#pragma once

#include <collectives/base/unique_fd.hpp>
#include <collectives/link/link.hpp>
#include <memory>
#include <vector>

#include "block.hpp"
#include "remote.hpp"

namespace vm_write {

using collectives::Announcement;
using collectives::Context;
using collectives::Stores;

// What the links of one communicator share: the first disagreement that this rank has found.
struct Shared {
    int rank = 0;
    std::optional<collectives::Disagreement> disagreement;
};

class Link final : public collectives::Link {
  public:
    // `block`: ours; `theirs`: the address of the peer's.
    Link(collectives::Peer peer, std::shared_ptr<Shared> shared, std::unique_ptr<Block> block,
         std::uint64_t theirs, pid_t pid, collectives::UniqueFd socket);
    ~Link() override;

    void begin(const Context& context, std::uint64_t length) override;
    std::size_t write(const std::byte* data, std::size_t n) override;
    std::uint64_t released() override { return written_; }
    bool finished() override { return announced_ && written_ == length_; }

    std::optional<Announcement> announced(const Context& context, std::size_t eager) override;
    void expect(const Context& context, std::uint64_t length) override;
    std::size_t read(std::byte* data, std::size_t n, Stores stores) override;
    std::span<const std::byte> lend(std::size_t unit) override;
    void consume(std::size_t n) override;
    bool ready(std::size_t unit) override;
    bool received() override { return open() && read_ == expected_length_; }

    bool uses_sockets() const override { return true; }
    bool arm(bool sending, std::vector<pollfd>& polled) override;
    const char* lost() override;
    void shut_down(std::optional<int> lost) override;
    const char* scheme() const override { return "vm-write"; }
    bool quiesce() override;

    void compare(const Call& mine) const override;
    void throw_disagreement(const Call& during) const override;

  private:
    std::optional<int> blamed() const override;
    void report_disagreement(const Call& mine, const Call& theirs) const override;

    // --- writing to the peer
    // The address there of a member of its block.
    template <typename Member>
    std::uint64_t at(const Member& member) const {
        return theirs_ + static_cast<std::uint64_t>(reinterpret_cast<const std::byte*>(&member) -
                                                    reinterpret_cast<const std::byte*>(block_.get()));
    }
    // Nothing is written where either side has revoked, or the peer's process is gone.
    std::size_t put(std::span<const Remote::Part> parts);
    // Ends the peer's sleep if it has armed.
    void ring();
    // Asks the peer to write nothing more; whether that is certain.
    bool revoke();

    // --- sending
    bool has_slot();
    // Where the peer wants the next bytes of the message. Throws where it expects another one.
    std::optional<Landing> landing();
    bool can_send();

    // --- receiving
    // Whether the next message has begun to come; it must be the one that is expected.
    bool open();
    // How many of its bytes lie in their place.
    std::uint64_t arrived();
    // Bytes up to `end` may be written there.
    void post(std::uint64_t address, std::uint64_t period, std::uint64_t end);
    void finish();
    bool can_receive();
    // Takes what rang; whether the socket has ended.
    bool drain();

    std::shared_ptr<Shared> shared_;
    std::unique_ptr<Block> block_;
    std::uint64_t theirs_;
    Remote remote_;
    collectives::UniqueFd socket_;
    bool armed_ = false;      // the peer, as far as we know
    bool is_silent_ = false;  // this rank has said its last
    bool has_ended_ = false;  // the socket
    bool has_revoked_ = false;

    // sending
    const Context* sending_ = nullptr;
    std::uint64_t number_ = 0;    // of the message
    std::uint64_t finished_ = 0;  // messages that the peer has received, as far as it says
    std::uint64_t length_ = 0;
    std::uint64_t written_ = 0;
    std::uint64_t offered_ = 0;  // up to here it could be written
    bool announced_ = false;

    // receiving
    const Context* expected_ = nullptr;
    std::uint64_t number_in_ = 0;    // of the message that is expected, or was the last
    std::uint64_t finished_in_ = 0;  // messages that were received,
    std::uint64_t confirmed_ = 0;    // and so many the peer knows of
    std::uint64_t expected_length_ = 0;
    std::uint64_t read_ = 0;
    std::uint64_t arrived_ = 0;
    bool opened_ = false;
    std::size_t unit_ = 1;
    Landing posted_;
    std::uint64_t seen_ = 0;  // the last message that `announced` has described
    std::unique_ptr<std::byte[]> buffer_;
};

}  // namespace vm_write
