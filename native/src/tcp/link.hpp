// Links over one connected TCP socket, or over several sockets, among which long messages are divided.
//
// Invariant: a message up to the size of one part uses the first lane only. If there are several lanes, a
// longer message is sent in parts over all of them; both sides know this from the length. Frames are
// numbered, so that a part of the next message that arrives too early waits on its lane. A frame's length is
// compared with the expected length before any payload is received.
#pragma once

#include <vector>

#include "base/unique_fd.hpp"
#include "link/link.hpp"
#include "tcp/farewell.hpp"
#include "tcp/lane.hpp"
#include "tcp/parts.hpp"

namespace collectives {

class TcpLink final : public Link {
  public:
    // `sockets`: in the same order as the peer's ends of these connections. `slice`: the size of an inbox.
    TcpLink(Peer peer, std::vector<UniqueFd> sockets, UniqueFd farewell, std::size_t slice,
            std::chrono::nanoseconds silence = {});

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

    bool uses_sockets() const override { return true; }
    bool arm(bool sending, std::vector<pollfd>& polled) override;
    bool leaves_machine() const override { return leaves_machine_; }
    const char* lost() override;
    void shut_down(std::optional<int> lost) override;
    const char* scheme() const override { return "tcp"; }

  private:
    std::optional<int> blamed() const override { return farewell_.hear(); }
    bool in_parts(std::uint64_t length) const { return lanes_.size() > 1 && length > Parts::size; }
    // Throws unless the frame belongs to the expected message.
    void check(const Frame& frame, bool part) const;
    std::size_t write_parts(const std::byte* data, std::size_t n);
    // Whether the lane has a part, or gets the next one, with bytes to send before byte `end` of the message.
    bool has_part_to_send(std::size_t lane, std::uint64_t end);
    std::size_t read_parts(std::byte* data, std::size_t n);
    std::span<const std::byte> peek_parts(std::size_t unit);
    // Whether the frame of a message that is not divided has arrived.
    bool open_message();
    // n more bytes of this message have been received.
    void take(std::size_t n);
    // Whether the frame of a part of the message has arrived on that lane.
    bool open_part(std::size_t lane);
    std::uint64_t left() const { return expected_length_ - taken_; }

    std::vector<TcpLane> lanes_;
    Farewell farewell_;
    std::chrono::nanoseconds silence_;  // after which the peer's host counts as gone; 0: never
    bool leaves_machine_ = true;

    // sending
    Frame frame_;
    bool parts_out_ = false;
    std::uint32_t goes_on_ = 0;  // a bit for each lane that may accept more at once
    Parts out_;

    // receiving
    const Context* expected_ = nullptr;
    std::uint64_t expected_length_ = 0;
    std::uint32_t ordinal_ = 0;
    std::uint64_t taken_ = 0;  // received bytes of a message that is not divided
    bool opened_ = false;      // its frame has arrived and is the right one
    bool parts_in_ = false;
    Parts in_;
};

}  // namespace collectives
