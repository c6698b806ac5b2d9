#include "tcp/lane.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/copy.hpp"
#include "base/error.hpp"

namespace collectives {

namespace {

constexpr std::size_t smallest_inbox = 16 << 10;
// The most that one system call receives, so that reductions and other links get their turn.
constexpr std::size_t most_per_receive = 1 << 20;
// Messages of up to this size are written at once. For longer messages, writes of one segment (64 KiB with
// its headers) take half the time of the largest writes on some machines, and a third more on others
// (docs/decisions/027-tcp-writes-on-one-machine.md).
constexpr std::size_t whole_message = 512 << 10;
constexpr std::size_t largest_write = 1 << 20;
constexpr std::size_t one_segment = 48 << 10;

}  // namespace

TcpLane::TcpLane(const Link& link, UniqueFd socket, std::size_t slice, bool at_home)
    : link_(link),
      socket_(std::move(socket)),
      slice_(std::max(slice, smallest_inbox)),
      at_home_(at_home),
      ways_(whole_message) {}

void TcpLane::begin(const Frame& frame, std::uint64_t length) {
    frame_out_ = frame;
    frame_sent_ = 0;
    length_ = length;
    written_ = 0;
    offered_ = 0;
    const bool is_long = frame.length > whole_message;
    timed_ = is_long && at_home_;
    if (timed_) {
        way_ = ways_.next(length);
        began_ = Faster::Clock::now();
    }
    most_per_send_ = is_long && (!timed_ || way_ == 0) ? one_segment : largest_write;
}

std::size_t TcpLane::write(const std::byte* data, std::size_t n) {
    // A frame is sent together with the first bytes of its payload.
    if (n == 0 && (length_ > 0 || frame_sent_ == sizeof(Frame))) return 0;
    if (is_more_coming(n)) return 0;
    n = std::min(n, most_per_send_);
    std::array<iovec, 2> parts{};
    parts[0].iov_base = reinterpret_cast<std::byte*>(&frame_out_) + frame_sent_;
    parts[0].iov_len = sizeof(Frame) - frame_sent_;
    parts[1].iov_base = const_cast<std::byte*>(data);
    parts[1].iov_len = n;
    msghdr message{};
    const bool frame_out = frame_sent_ == sizeof(Frame);
    message.msg_iov = frame_out ? &parts[1] : parts.data();
    message.msg_iovlen = frame_out ? 1 : 2;
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
        if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS) {
            blocked_ = true;
            return 0;
        }
        link_.throw_lost(frame_out_.call, errno_text(errno));
    }
    const auto total = static_cast<std::size_t>(sent);
    const std::size_t of_frame = std::min(total, sizeof(Frame) - frame_sent_);
    blocked_ = total < sizeof(Frame) - frame_sent_ + n;
    frame_sent_ += of_frame;
    written_ += total - of_frame;
    if (timed_ && finished()) ways_.took(length_, way_, Faster::Clock::now() - began_);
    return total - of_frame;
}

bool TcpLane::is_more_coming(std::size_t n) {
    const std::uint64_t offered = written_ + n;
    const bool grows = offered > std::exchange(offered_, offered);
    if (n >= most_per_send_ || offered == length_ || !grows) return false;
    blocked_ = true;
    return true;
}

std::size_t TcpLane::receive(const Call& during, std::byte* data, std::size_t n) {
    const ssize_t got = ::recv(socket_.get(), data, n, MSG_DONTWAIT);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0) {
        ended_ = true;
        if (opened_ || held() > 0) link_.throw_lost(during, closed_by_peer);
        return 0;
    }
    if (errno != EAGAIN && errno != EINTR) link_.throw_lost(during, errno_text(errno));
    return 0;
}

void TcpLane::fill(const Call& during, std::size_t want) {
    if (held() >= want) return;
    if (!inbox_) {
        inbox_ = std::make_unique_for_overwrite<std::byte[]>(slice_);
        link_.count_inbox(slice_);
    }
    if (begin_ == end_) {
        begin_ = end_ = 0;
    } else if (begin_ + want > slice_) {
        std::memmove(inbox_.get(), inbox_.get() + begin_, held());
        end_ = held();
        begin_ = 0;
    }
    const std::size_t room = std::min(slice_ - end_, want - held());
    end_ += receive(during, inbox_.get() + end_, room);
}

const Frame* TcpLane::frame(const Call& during, std::size_t eager) {
    if (opened_) return &frame_in_;
    if (ended_) return nullptr;
    if (held() < sizeof(Frame)) {
        fill(during, sizeof(Frame) + eager);
        if (held() < sizeof(Frame)) return nullptr;
    }
    std::memcpy(&frame_in_, inbox_.get() + begin_, sizeof(Frame));
    if (frame_in_.magic != frame_magic) link_.throw_refused(during, "it sent something that is not ours");
    begin_ += sizeof(Frame);
    opened_ = true;
    return &frame_in_;
}

std::size_t TcpLane::read(const Call& during, std::byte* data, std::size_t n) {
    std::size_t done = std::min(n, held());
    if (done > 0) {
        copy_bytes(data, inbox_.get() + begin_, done);
        begin_ += done;
    }
    if (done < n) done += receive(during, data + done, std::min(n - done, most_per_receive));
    return done;
}

std::span<const std::byte> TcpLane::peek(const Call& during, std::size_t unit, std::size_t left) {
    const std::size_t useful = std::min(left, slice_);
    if (held() < std::max(unit, useful / 2)) fill(during, useful);
    const std::size_t n = std::min(held(), left);
    if (n < unit) return {};
    return {inbox_.get() + begin_, n};
}

TcpLane::Health TcpLane::look() const {
    std::byte next{};
    const ssize_t got = ::recv(socket_.get(), &next, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got == 0) return Health::closed;
    return got > 0 || errno == EAGAIN || errno == EINTR ? Health::fine : Health::broken;
}

void TcpLane::shut_down() { ::shutdown(socket_.get(), SHUT_WR); }

}  // namespace collectives
