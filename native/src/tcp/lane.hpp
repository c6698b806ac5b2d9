// One connected TCP socket of a link, driven from the calling thread: messages or parts of them, each behind
// a frame.
//
// Invariant: payload goes from the caller's memory to the socket and from the socket to the caller's memory;
// only frames, what arrives together with them, and operands of a reduction pass through `inbox_`. No more is
// received than the payload of the frame that is open.
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
    // A lane of `link`, whose peer errors name. `slice`: the size of the inbox. `at_home`: both ends are on
    // this machine.
    TcpLane(const Link& link, UniqueFd socket, std::size_t slice, bool at_home);

    // --- sending
    // Start a frame and the `length` bytes that belong to it; what came before is finished.
    void begin(const Frame& frame, std::uint64_t length);
    // Take up to n of the next bytes; a frame without payload is sent by writing 0 bytes. What is little, and
    // more than last time, waits for the rest: until no more has come when this is called again.
    std::size_t write(const std::byte* data, std::size_t n);
    std::uint64_t written() const { return written_; }
    bool finished() const { return frame_sent_ == sizeof(Frame) && written_ == length_; }

    // --- receiving, for the operation `during`
    // The frame at hand, null as long as it has not come. Up to `eager` bytes of its payload come with it.
    const Frame* frame(const Call& during, std::size_t eager);
    bool has_frame() const { return opened_; }
    // The peer has closed it, behind all that it had to say here.
    bool is_at_end() const { return ended_; }
    // All of its payload has been taken: turn to the next.
    void close_frame() { opened_ = false; }
    // Move up to n of the next bytes to `data`; no more than are left of the payload.
    std::size_t read(const Call& during, std::byte* data, std::size_t n);
    // Look at the next bytes, of which `left` are left, in the inbox: empty, or at least `unit` of them.
    std::span<const std::byte> peek(const Call& during, std::size_t unit, std::size_t left);
    void consume(std::size_t n) { begin_ += n; }
    // How many bytes the inbox holds.
    std::size_t held() const { return end_ - begin_; }

    int fd() const { return socket_.get(); }
    // The socket took less than it was given, or what was given waits.
    bool is_blocked() const { return blocked_; }
    // What is known of the connection, apart from what is still to be taken.
    enum class Health : std::uint8_t { fine, closed, broken };
    Health look() const;
    void shut_down();

  private:
    // Whether to wait for more before sending n bytes.
    bool is_more_coming(std::size_t n);
    // Receive into the inbox, at most until it holds `want` bytes.
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
    std::uint64_t offered_ = 0;  // by the last call, from the beginning
    std::size_t most_per_send_ = 0;
    bool blocked_ = false;
    // Of long messages: 0 in segments, 1 in the largest writes.
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
