// A lane: one connected TCP socket of a link, used on the calling thread. It carries messages or parts of
// messages, each after a frame.
//
// Invariant: payload goes from the caller's memory to the socket and from the socket to the caller's memory.
// Only frames, data that arrives together with them, and operands of a reduction pass through the receive
// buffer `inbox_`. No more is received than the payload of the current frame.
#pragma once

#include <memory>
#include <span>

#include "base/faster.hpp"
#include "base/unique_fd.hpp"
#include "link/frame.hpp"
#include "link/link.hpp"

namespace collectives {

inline constexpr const char* closed_by_peer = "it closed the connection";

class TcpLane {
  public:
    // A lane of `link`; errors name the link's peer. `slice`: the size of the inbox. `at_home`: whether both
    // ends are on this machine.
    TcpLane(const Link& link, UniqueFd socket, std::size_t slice, bool at_home);

    // --- sending
    // Start a frame with a payload of `length` bytes; the previous frame must be finished.
    void begin(const Frame& frame, std::uint64_t length);
    // Send up to n of the next bytes; a frame without payload is sent by writing 0 bytes. A few bytes are not
    // sent at once if they are more than at the last call, because the rest may follow soon.
    std::size_t write(const std::byte* data, std::size_t n);
    std::uint64_t written() const { return written_; }
    bool finished() const { return frame_sent_ == sizeof(Frame) && written_ == length_; }

    // --- receiving, for the operation `during`
    // The current frame, null if it has not arrived. Up to `eager` bytes of its payload are received with it.
    const Frame* frame(const Call& during, std::size_t eager);
    bool has_frame() const { return opened_; }
    // Whether the peer has closed the connection, after the last byte that it sent here.
    bool is_at_end() const { return ended_; }
    // The payload of the frame has been received: go on to the next frame.
    void close_frame() { opened_ = false; }
    // Move up to n of the next bytes to `data`; n must not exceed the rest of the payload.
    std::size_t read(const Call& during, std::byte* data, std::size_t n);
    // The next bytes in the inbox, empty or at least `unit` bytes; `left`: bytes that are left of the
    // payload.
    std::span<const std::byte> peek(const Call& during, std::size_t unit, std::size_t left);
    void consume(std::size_t n) { begin_ += n; }
    // The number of bytes in the inbox.
    std::size_t held() const { return end_ - begin_; }

    int fd() const { return socket_.get(); }
    // Whether the socket took less than was passed to it, or a few bytes are held back.
    bool is_blocked() const { return blocked_; }
    // The state of the connection, apart from data that is still to be received.
    enum class Health : std::uint8_t { fine, closed, broken };
    Health look() const;
    void shut_down();

  private:
    // Whether to hold n bytes back, because more may follow soon.
    bool is_more_coming(std::size_t n);
    // Receive into the inbox until it has `want` bytes or no more have arrived.
    void fill(const Call& during, std::size_t want);
    std::size_t receive(const Call& during, std::byte* data, std::size_t n);

    const Link& link_;
    UniqueFd socket_;
    std::size_t slice_;
    bool at_home_;

    // sending
    Frame frame_out_;
    std::size_t frame_sent_ = sizeof(Frame);
    std::uint64_t length_ = 0;
    std::uint64_t written_ = 0;
    std::uint64_t offered_ = 0;  // bytes that the caller has offered so far, from the beginning
    std::size_t most_per_send_ = 0;
    bool blocked_ = false;
    // The mode for long messages: 0 in writes of one segment, 1 in the largest writes.
    Faster ways_;
    std::size_t way_ = 0;
    bool timed_ = false;
    Faster::Clock::time_point began_;

    // receiving
    Frame frame_in_;
    bool opened_ = false;
    bool ended_ = false;
    std::unique_ptr<std::byte[]> inbox_;
    std::size_t begin_ = 0;
    std::size_t end_ = 0;
};

}  // namespace collectives
