// Links over a connected TCP socket, driven from the calling thread.
//
// Invariant: payload goes from the caller's memory to the socket and from the socket to the caller's memory;
// only frames, what arrives together with them, and operands of a reduction pass through `inbox_`. A frame's
// length is compared with the one expected before any of the payload is taken.
#pragma once

#include <memory>

#include "link.hpp"
#include "unique_fd.hpp"

namespace collectives {

class TcpLink final : public Link {
  public:
    // `slice`: the most that one system call moves, and the size of the inbox.
    TcpLink(Peer peer, UniqueFd socket, std::size_t slice);

    void begin(const Context& context, std::uint64_t length) override;
    std::size_t write(const std::byte* data, std::size_t n) override;
    std::uint64_t released() override { return written_; }
    bool finished() override { return frame_sent_ == sizeof(Frame) && written_ == frame_.length; }

    void expect(const Context& context, std::uint64_t length) override;
    std::size_t read(std::byte* data, std::size_t n, Stores stores) override;
    std::span<const std::byte> peek(std::size_t unit) override;
    void consume(std::size_t n) override;
    bool ready(std::size_t unit) override;
    bool received() override;

    bool leaves_machine() const override { return leaves_machine_; }
    int fd() const override { return socket_.get(); }
    short events(bool sending, bool receiving) const override;
    const char* lost() override;
    void shut_down() override;
    const char* scheme() const override { return "tcp"; }

  private:
    bool open_frame();
    // Receive into the inbox, at most until it holds `want` bytes; whether any came.
    bool fill(std::size_t want);
    std::size_t receive(std::byte* data, std::size_t n);
    std::size_t held() const { return end_ - begin_; }
    std::size_t left() const { return static_cast<std::size_t>(expected_length_ - taken_); }

    UniqueFd socket_;
    std::size_t slice_;

    // sending
    Frame frame_;
    std::size_t frame_sent_ = sizeof(Frame);
    std::uint64_t written_ = 0;
    bool leaves_machine_ = true;
    bool blocked_ = false;  // the socket took less than it was given

    // receiving
    const Context* expected_ = nullptr;
    std::uint64_t expected_length_ = 0;
    std::uint64_t taken_ = 0;
    bool opened_ = false;  // the frame has arrived and is the right one
    std::unique_ptr<std::byte[]> inbox_;
    std::size_t begin_ = 0;
    std::size_t end_ = 0;
};

}  // namespace collectives
