#include "tcp_link.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "error.hpp"
#include "sockets.hpp"

namespace collectives {

namespace {

// How much to take together with a frame when the payload will be received straight into place: enough that
// a small message costs one system call, little enough that copying it again does not matter.
constexpr std::size_t eager_bytes = 4 << 10;
constexpr std::size_t smallest_inbox = 16 << 10;
// One system call receives no more, so that reductions and other links get their turn.
constexpr std::size_t most_per_receive = 1 << 20;
// A message up to this size goes to the kernel at once. What is longer goes in pieces that the kernel can
// send as one segment each (64 KiB with its headers): a larger write is cut into segments and a small rest,
// and over loopback the peer's half of the work then costs twice as much (docs/performance.md).
constexpr std::size_t whole_message = 512 << 10;
constexpr std::size_t one_segment = 48 << 10;
// Between two sockets of one machine nothing is gained by having more under way than fits into the caches.
// Elsewhere the kernel finds out how much the way to the peer holds.
constexpr int send_buffer_at_home = 256 << 10;

}  // namespace

TcpLink::TcpLink(Peer peer, UniqueFd socket, std::size_t slice)
    : Link(std::move(peer)), socket_(std::move(socket)), slice_(std::max(slice, smallest_inbox)) {
    leaves_machine_ = !stays_on_this_machine(socket_.get());
    if (!leaves_machine_) limit_send_buffer(socket_.get(), send_buffer_at_home);
}

void TcpLink::begin(const Context& context, std::uint64_t length) {
    frame_ = Frame{context.call, length, frame_magic, 0};
    frame_sent_ = 0;
    written_ = 0;
}

std::size_t TcpLink::write(const std::byte* data, std::size_t n) {
    // A frame waits for the first bytes of its payload: they leave together.
    if (n == 0 && (frame_.length > 0 || frame_sent_ == sizeof(Frame))) return 0;
    n = std::min(n, frame_.length > whole_message ? one_segment : whole_message);
    std::array<iovec, 2> parts{};
    parts[0].iov_base = reinterpret_cast<std::byte*>(&frame_) + frame_sent_;
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
        throw_lost(frame_.call, errno_text(errno));
    }
    const auto total = static_cast<std::size_t>(sent);
    const std::size_t of_frame = std::min(total, sizeof(Frame) - frame_sent_);
    blocked_ = total < sizeof(Frame) - frame_sent_ + n;
    frame_sent_ += of_frame;
    written_ += total - of_frame;
    count_sent(total);
    return total - of_frame;
}

void TcpLink::expect(const Context& context, std::uint64_t length) {
    expected_ = &context;
    expected_length_ = length;
    taken_ = 0;
    opened_ = false;
}

std::size_t TcpLink::receive(std::byte* data, std::size_t n) {
    const ssize_t got = ::recv(socket_.get(), data, n, MSG_DONTWAIT);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0) throw_lost(expected_->call, "it closed the connection");
    if (errno != EAGAIN && errno != EINTR) throw_lost(expected_->call, errno_text(errno));
    return 0;
}

bool TcpLink::fill(std::size_t want) {
    if (held() >= want) return true;
    if (!inbox_) inbox_ = std::make_unique_for_overwrite<std::byte[]>(slice_);
    if (begin_ == end_) {
        begin_ = end_ = 0;
    } else if (begin_ + want > slice_) {
        std::memmove(inbox_.get(), inbox_.get() + begin_, held());
        end_ = held();
        begin_ = 0;
    }
    const std::size_t room = std::min(slice_ - end_, want - held());
    const std::size_t got = receive(inbox_.get() + end_, room);
    end_ += got;
    return got > 0;
}

bool TcpLink::open_frame() {
    if (opened_) return true;
    if (held() < sizeof(Frame)) {
        const auto eager = static_cast<std::size_t>(std::min<std::uint64_t>(expected_length_, eager_bytes));
        fill(sizeof(Frame) + eager);
        if (held() < sizeof(Frame)) return false;
    }
    Frame frame;
    std::memcpy(&frame, inbox_.get() + begin_, sizeof(frame));
    if (frame.magic != frame_magic) throw_lost(expected_->call, "it sent something that is not ours");
    if (frame.call != expected_->call) throw_desync(expected_->call, frame.call);
    if (frame.length != expected_length_) {
        throw_desync(expected_->call, frame.call,
                     ", with a message of " + std::to_string(frame.length) + " bytes instead of " +
                         std::to_string(expected_length_));
    }
    begin_ += sizeof(frame);
    opened_ = true;
    return true;
}

std::size_t TcpLink::read(std::byte* data, std::size_t n, Stores) {
    if (!open_frame() || n == 0) return 0;
    std::size_t done = std::min(n, held());
    if (done > 0) {
        std::memcpy(data, inbox_.get() + begin_, done);
        begin_ += done;
    }
    if (done < n) done += receive(data + done, std::min(n - done, most_per_receive));
    taken_ += done;
    return done;
}

std::span<const std::byte> TcpLink::peek(std::size_t unit) {
    if (!open_frame() || left() == 0) return {};
    const std::size_t useful = std::min(left(), slice_);
    if (held() < std::max(unit, useful / 2)) fill(useful);
    const std::size_t n = std::min(held(), left());
    if (n < unit) return {};
    return {inbox_.get() + begin_, n};
}

bool TcpLink::ready(std::size_t unit) { return opened_ && held() >= std::min(unit, left()); }

void TcpLink::consume(std::size_t n) {
    begin_ += n;
    taken_ += n;
}

bool TcpLink::received() { return open_frame() && taken_ == expected_length_; }

short TcpLink::events(bool sending, bool receiving) const {
    short events = POLLRDHUP;
    if (receiving) events |= POLLIN;
    if (sending && blocked_) events |= POLLOUT;
    return events;
}

const char* TcpLink::lost() {
    std::byte next{};
    const ssize_t got = ::recv(socket_.get(), &next, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got == 0) return "it closed the connection";
    if (got < 0 && errno != EAGAIN && errno != EINTR) return "its connection broke";
    return nullptr;
}

void TcpLink::shut_down() { ::shutdown(socket_.get(), SHUT_WR); }

}  // namespace collectives
