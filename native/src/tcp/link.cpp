#include "tcp/link.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "link/sockets.hpp"

namespace collectives {

namespace {

// Bytes of a payload that are received together with its frame, although the rest goes straight to its
// destination: enough that a small message needs one system call, and so few that copying them is cheap.
constexpr std::size_t eager_bytes = 4 << 10;
// Between two sockets of one machine, a larger send buffer than fits into the caches gains nothing. With a
// smaller one, a rank that shares its core waits until its peer has had a core. Between machines the kernel
// finds the right size.
constexpr int send_buffer_at_home = 768 << 10;
// The most bytes that wait in the kernel before they are sent for the first time. Other data on the same
// network link waits for them, and if one of several lanes is slow, the message ends only when they are sent.
constexpr int most_unsent = 128 << 10;

}  // namespace

TcpLink::TcpLink(Peer peer, std::vector<UniqueFd> sockets, UniqueFd farewell, std::size_t slice,
                 std::chrono::nanoseconds silence)
    : Link(std::move(peer)),
      farewell_(std::move(farewell)),
      silence_(silence),
      out_(sockets.size()),
      in_(sockets.size()) {
    leaves_machine_ = !stays_on_this_machine(sockets.at(0).get());
    lanes_.reserve(sockets.size());
    for (UniqueFd& socket : sockets) {
        if (!leaves_machine_) {
            limit_send_buffer(socket.get(), send_buffer_at_home);
            do_not_pace(socket.get());
        }
        if (leaves_machine_ || sockets.size() > 1) limit_unsent(socket.get(), most_unsent);
        lanes_.emplace_back(*this, std::move(socket), slice, !leaves_machine_);
    }
}

void TcpLink::begin(const Context& context, std::uint64_t length) {
    frame_ = Frame{context.call, length, frame_magic, frame_.ordinal + 1, 0, 0};
    parts_out_ = in_parts(length);
    goes_on_ = 0;
    if (parts_out_) {
        out_.begin(length);
    } else {
        lanes_[0].begin(frame_, length);
        count_sent(sizeof(Frame));
    }
}

std::size_t TcpLink::write(const std::byte* data, std::size_t n) {
    const std::size_t put = parts_out_ ? write_parts(data, n) : lanes_[0].write(data, n);
    count_sent(put);
    return put;
}

std::size_t TcpLink::write_parts(const std::byte* data, std::size_t n) {
    const std::uint64_t from = out_.through();
    goes_on_ = 0;
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
        if (!has_part_to_send(i, from + n)) continue;
        const std::uint32_t part = out_.on(i);
        const std::uint64_t ahead = out_.position(part) - from;
        const std::uint64_t left = std::min(n - ahead, out_.left(part));
        const std::size_t put = lanes_[i].write(data + ahead, static_cast<std::size_t>(left));
        out_.advance(i, put);
        if (put > 0 && !lanes_[i].is_blocked()) goes_on_ |= 1U << i;
    }
    return static_cast<std::size_t>(out_.through() - from);
}

bool TcpLink::has_part_to_send(std::size_t lane, std::uint64_t end) {
    if (out_.on(lane) == Parts::none) {
        const std::uint32_t next = out_.next();
        if (next == Parts::none || out_.position(next) >= end) return false;
        frame_.part = next + 1;
        out_.take_next(lane);
        lanes_[lane].begin(frame_, out_.length(next));
        count_sent(sizeof(Frame));
    }
    return out_.position(out_.on(lane)) < end;
}

std::uint64_t TcpLink::released() { return parts_out_ ? out_.through() : lanes_[0].written(); }

bool TcpLink::finished() { return parts_out_ ? out_.complete() : lanes_[0].finished(); }

std::optional<Announcement> TcpLink::announced(const Context& context, std::size_t eager) {
    // A message that is not divided uses the first lane.
    for (TcpLane& lane : lanes_) {
        const Frame* const frame = lane.frame(context.call, &lane == lanes_.data() ? eager : 0);
        if (frame == nullptr || frame->ordinal != ordinal_ + 1) continue;
        return Announcement{frame->call, frame->length, frame->call.is_message()};
    }
    return std::nullopt;
}

void TcpLink::expect(const Context& context, std::uint64_t length) {
    expected_ = &context;
    expected_length_ = length;
    ++ordinal_;
    taken_ = 0;
    opened_ = false;
    parts_in_ = in_parts(length);
    if (parts_in_) in_.begin(length);
}

void TcpLink::check(const Frame& frame, bool part) const {
    if (frame.call != expected_->call) throw_desync(expected_->call, frame.call);
    if (frame.length != expected_length_) {
        throw_desync(expected_->call, frame.call,
                     ", with a message of " + std::to_string(frame.length) + " bytes instead of " +
                         std::to_string(expected_length_));
    }
    if (frame.ordinal != ordinal_ || (frame.part > 0) != part) {
        throw_refused(expected_->call, "it sent something that is not ours");
    }
}

bool TcpLink::open_message() {
    if (opened_) return true;
    const auto eager = static_cast<std::size_t>(std::min<std::uint64_t>(expected_length_, eager_bytes));
    const Frame* const frame = lanes_[0].frame(expected_->call, eager);
    if (frame == nullptr && lanes_[0].is_at_end()) throw_lost(expected_->call, closed_by_peer);
    if (frame == nullptr) return false;
    check(*frame, false);
    opened_ = true;
    take(0);
    return true;
}

void TcpLink::take(std::size_t n) {
    taken_ += n;
    if (taken_ == expected_length_) lanes_[0].close_frame();
}

bool TcpLink::open_part(std::size_t lane) {
    if (in_.on(lane) != Parts::none) return true;
    const Frame* const frame = lanes_[lane].frame(expected_->call, 0);
    if (frame == nullptr) return false;
    if (frame->ordinal != ordinal_) return false;  // of a later message: this lane has no more of this one
    check(*frame, true);
    if (!in_.take(lane, frame->part - 1)) throw_refused(expected_->call, "it sent a part of a message twice");
    return true;
}

std::size_t TcpLink::read(std::byte* data, std::size_t n, Stores) {
    if (parts_in_) return read_parts(data, n);
    if (!open_message() || n == 0) return 0;
    const std::size_t got = lanes_[0].read(expected_->call, data, n);
    take(got);
    return got;
}

std::size_t TcpLink::read_parts(std::byte* data, std::size_t n) {
    const std::uint64_t from = in_.through();
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
        bool through = true;  // the previous part is complete, so the next one may have arrived
        while (through && !in_.complete() && open_part(i)) {
            const std::uint32_t part = in_.on(i);
            const std::uint64_t ahead = in_.position(part) - from;
            if (ahead >= n) break;
            const auto left = static_cast<std::size_t>(std::min(n - ahead, in_.left(part)));
            through = in_.advance(i, lanes_[i].read(expected_->call, data + ahead, left));
            if (through) lanes_[i].close_frame();
        }
    }
    return static_cast<std::size_t>(in_.through() - from);
}

std::span<const std::byte> TcpLink::lend(std::size_t unit) {
    if (parts_in_) return peek_parts(unit);
    if (!open_message() || left() == 0) return {};
    return lanes_[0].peek(expected_->call, unit, static_cast<std::size_t>(left()));
}

std::span<const std::byte> TcpLink::peek_parts(std::size_t unit) {
    if (in_.complete()) return {};
    const auto look = [&](std::size_t lane) {
        return lanes_[lane].peek(expected_->call, unit, static_cast<std::size_t>(in_.left(in_.on(lane))));
    };
    std::size_t front = in_.lane_in_front();
    if (front < lanes_.size()) {
        const auto found = look(front);
        if (!found.empty()) return found;
    }
    // Receive what has arrived on the other lanes, so that the kernel can accept more.
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
        if (i != front && open_part(i)) look(i);
    }
    if (front < lanes_.size()) return {};
    front = in_.lane_in_front();
    return front < lanes_.size() ? look(front) : std::span<const std::byte>{};
}

bool TcpLink::ready(std::size_t unit) {
    if (!parts_in_) {
        return opened_ && lanes_[0].held() >= std::min<std::uint64_t>(unit, left());
    }
    const std::size_t front = in_.lane_in_front();
    return front < lanes_.size() &&
           lanes_[front].held() >= std::min<std::uint64_t>(unit, in_.left(in_.on(front)));
}

void TcpLink::consume(std::size_t n) {
    const std::size_t lane = parts_in_ ? in_.lane_in_front() : 0;
    lanes_[lane].consume(n);
    if (!parts_in_) {
        take(n);
    } else if (in_.advance(lane, n)) {
        lanes_[lane].close_frame();
    }
}

bool TcpLink::received() { return parts_in_ ? in_.complete() : open_message() && taken_ == expected_length_; }

bool TcpLink::arm(bool sending, std::vector<pollfd>& polled) {
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
        const TcpLane& lane = lanes_[i];
        short events = lane.is_at_end() ? 0 : POLLRDHUP;
        if (sending) {
            const bool waits = (parts_out_ ? out_.on(i) != Parts::none : i == 0) && lane.is_blocked();
            if (waits || (goes_on_ >> i & 1) != 0) events |= POLLOUT;
        } else if (lane.is_at_end()) {
            continue;
        } else if (parts_in_ ? in_.on(i) != Parts::none || !lane.has_frame() : i == 0) {
            events |= POLLIN;  // not on lanes on which the next message has begun
        }
        if (events != 0) polled.push_back({lane.fd(), events, 0});
    }
    return false;  // poll() reports data that has arrived before
}

const char* TcpLink::lost() {
    // The peer may have closed some lanes while data that it sent before arrives on others.
    bool closed = true;
    for (const TcpLane& lane : lanes_) {
        const TcpLane::Health health = lane.look();
        if (health == TcpLane::Health::broken) return "its connection broke";
        closed = closed && health == TcpLane::Health::closed;
    }
    if (closed) return closed_by_peer;
    const auto is_dead = [&](const TcpLane& lane) { return is_unanswered(lane.fd(), silence_); };
    const bool asks = leaves_machine_ && silence_ > std::chrono::nanoseconds(0);
    return asks && std::ranges::any_of(lanes_, is_dead) ? "its host does not answer" : nullptr;
}

void TcpLink::shut_down(std::optional<int> lost) {
    farewell_.say(lost == peer().rank ? std::nullopt : lost);
    for (TcpLane& lane : lanes_) lane.shut_down();
}

}  // namespace collectives
