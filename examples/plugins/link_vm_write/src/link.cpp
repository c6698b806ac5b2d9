#include "link.hpp"

#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <collectives/base/error.hpp>
#include <collectives/base/wait.hpp>

namespace vm_write {

namespace {

constexpr std::size_t buffer_size = 1 << 20;  // where messages lie that a reduction looks at
constexpr std::size_t piece = 256 << 10;      // written at a time, so that the peer can begin with it
constexpr std::uint64_t no_period = ~std::uint64_t{0};
constexpr double write_ends_within = 1.0;  // seconds

}  // namespace

Link::Link(collectives::Peer peer, std::shared_ptr<Shared> shared, std::unique_ptr<Block> block,
           std::uint64_t theirs, pid_t pid, collectives::UniqueFd socket)
    : collectives::Link(std::move(peer)),
      shared_(std::move(shared)),
      block_(std::move(block)),
      theirs_(theirs),
      remote_(pid),
      socket_(std::move(socket)) {}

Link::~Link() {
    if (revoke()) return;
    // The peer may write there once more, so the memory must not be in other use ever again.
    [[maybe_unused]] const Block* const block = block_.release();
    [[maybe_unused]] const std::byte* const buffer = buffer_.release();
}

// --- writing to the peer

std::size_t Link::put(std::span<const Remote::Part> parts) {
    // A process that has ended is not written to: its number may be another one's by now.
    pollfd end{socket_.get(), 0, 0};
    const bool has_ended = ::poll(&end, 1, 0) > 0 && (end.revents & (POLLHUP | POLLERR)) != 0;
    if (has_ended || has_revoked_ || remote_.error() != 0) return 0;
    block_->writes.fetch_add(1, std::memory_order_seq_cst);
    std::size_t written = 0;
    if (block_->revoked.load(std::memory_order_seq_cst) == 0) written = remote_.write(parts);
    block_->writes.fetch_add(1, std::memory_order_seq_cst);
    return written;
}

void Link::ring() {
    // The peer arms, and looks after that; we have stored, and look now: one of the two sees the other's
    // store.
    if (block_->armed.exchange(0, std::memory_order_seq_cst) == 0) return;
    const char any = 0;
    [[maybe_unused]] const auto n = ::send(socket_.get(), &any, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool Link::revoke() {
    const std::uint64_t one = 1;
    put(std::array{Remote::Part{at(block_->revoked), &one, sizeof(one)}});
    has_revoked_ = true;  // the peer may free its block from now on
    const collectives::Deadline deadline(write_ends_within);
    // A peer that has revoked is through with its operations, and writes nothing but this.
    while (block_->revoked.load(std::memory_order_seq_cst) == 0) {
        std::uint64_t writes = 1;
        if (!remote_.read(at(block_->writes), writes)) return remote_.error() == ESRCH;
        if (writes % 2 == 0) return true;
        if (deadline.passed()) return false;
        ::sched_yield();
    }
    return true;
}

bool Link::quiesce() {
    const bool is_buffer = posted_.period != no_period;
    return is_buffer || posted_.end <= arrived_ || revoke();
}

// --- sending

void Link::begin(const Context& context, std::uint64_t length) {
    sending_ = &context;
    length_ = length;
    written_ = offered_ = 0;
    announced_ = false;
    ++number_;
}

std::size_t Link::write(const std::byte* data, std::size_t n) {
    offered_ = written_ + n;
    if ((n == 0 && length_ > 0) || (!announced_ && !has_slot())) return 0;
    const std::optional<Landing> place = n > 0 ? landing() : std::nullopt;
    std::uint64_t put_now = 0;
    if (place) {
        const std::uint64_t at = written_ % place->period;
        put_now = std::min<std::uint64_t>({n, piece, place->end - written_, place->period - at});
        put_now = put(std::array{Remote::Part{place->address + at, data, static_cast<std::size_t>(put_now)}});
        payload_written.fetch_add(put_now, std::memory_order_relaxed);
    }
    if (announced_ && put_now == 0) return 0;
    const auto heading = Record<Heading>::image({number_, length_, sending_->fingerprint, sending_->call});
    const auto progress = Record<Progress>::image({number_, written_ + put_now});
    const std::array parts{
        Remote::Part{at(block_->progress), progress.data(), put_now > 0 ? sizeof(progress) : 0},
        Remote::Part{at(block_->headings[number_ % most_headings]), heading.data(),
                     announced_ ? 0 : sizeof(heading)}};
    if (put(parts) == 0) return 0;
    announced_ = true;
    written_ += put_now;
    count_sent(put_now);
    ring();
    return static_cast<std::size_t>(put_now);
}

bool Link::has_slot() {
    if (number_ - finished_ <= most_headings) return true;
    const std::optional<Landing> theirs = block_->landing.load();
    if (theirs && theirs->finished < number_) finished_ = std::max(finished_, theirs->finished);
    return number_ - finished_ <= most_headings;
}

std::optional<Landing> Link::landing() {
    const std::optional<Landing> theirs = block_->landing.load();
    if (!theirs || theirs->number != number_) return std::nullopt;
    if (theirs->fingerprint != sending_->fingerprint) {
        throw_desync(sending_->call, theirs->call,
                     sending_->call == theirs->call ? ", after other operations than this rank" : "");
    }
    if (theirs->length != length_) {
        throw_desync(sending_->call, theirs->call, ", with a message of another length");
    }
    if (theirs->from > written_ || theirs->end > length_ || theirs->period == 0) {
        throw_refused(sending_->call, "it asked for bytes that are not in the message");
    }
    return theirs->end > written_ ? theirs : std::nullopt;
}

bool Link::can_send() { return announced_ ? offered_ > written_ && landing() : has_slot(); }

// --- receiving

std::optional<Announcement> Link::announced(const Context& /*context*/, std::size_t /*eager*/) {
    const std::optional<Heading> next = block_->headings[(finished_in_ + 1) % most_headings].load();
    if (!next || next->number != finished_in_ + 1) return std::nullopt;
    seen_ = next->number;
    const bool is_message = next->call.is_message();
    return Announcement{next->call, is_message ? next->length : 0, is_message};
}

void Link::expect(const Context& context, std::uint64_t length) {
    expected_ = &context;
    expected_length_ = length;
    number_in_ = finished_in_ + 1;
    read_ = arrived_ = 0;
    opened_ = false;
    unit_ = 1;
    posted_ = {};
}

bool Link::open() {
    if (opened_) return true;
    const std::optional<Heading> found = block_->headings[number_in_ % most_headings].load();
    if (!found || found->number != number_in_) return false;
    if (found->fingerprint != expected_->fingerprint) {
        throw_desync(expected_->call, found->call,
                     found->call == expected_->call ? ", after other operations than this rank" : "");
    }
    if (found->length != expected_length_) {
        throw_desync(expected_->call, found->call, ", with a message of another length");
    }
    opened_ = true;
    if (expected_length_ == 0) finish();
    return true;
}

std::uint64_t Link::arrived() {
    const std::optional<Progress> found = block_->progress.load();
    if (!found || found->number != number_in_) return arrived_;
    if (found->arrived < arrived_ || found->arrived > posted_.end) {
        throw_refused(expected_->call, "it wrote more than it was asked for");
    }
    arrived_ = found->arrived;
    return arrived_;
}

void Link::post(std::uint64_t address, std::uint64_t period, std::uint64_t end) {
    if (posted_.number == number_in_ && posted_.address == address && posted_.end >= end) return;
    posted_ = {number_in_, expected_length_, expected_->fingerprint, expected_->call, address, period, read_,
               end,        finished_in_};
    const auto image = Record<Landing>::image(posted_);
    put(std::array{Remote::Part{at(block_->landing), image.data(), sizeof(image)}});
    confirmed_ = finished_in_;
    ring();
}

std::size_t Link::read(std::byte* data, std::size_t n, Stores /*stores*/) {
    unit_ = 1;
    if (n > 0 && read_ < expected_length_) {
        post(reinterpret_cast<std::uintptr_t>(data) - read_, no_period, read_ + n);
    }
    if (!open() || n == 0) return 0;
    n = static_cast<std::size_t>(std::min<std::uint64_t>(n, arrived() - read_));
    consume(n);
    return n;
}

std::span<const std::byte> Link::lend(std::size_t unit) {
    unit_ = unit;
    if (read_ < expected_length_) {
        if (!buffer_) {
            buffer_ = std::make_unique_for_overwrite<std::byte[]>(buffer_size);
            count_inbox(buffer_size);
        }
        const std::uint64_t end = std::min<std::uint64_t>(read_ + buffer_size, expected_length_);
        // Asking for each byte that is free again would cost a system call each time.
        if (end == expected_length_ || end - posted_.end >= buffer_size / 4) {
            post(reinterpret_cast<std::uintptr_t>(buffer_.get()), buffer_size, end);
        }
    }
    if (!ready(unit) || read_ == expected_length_) return {};
    const auto at = static_cast<std::size_t>(read_ % buffer_size);
    return {buffer_.get() + at,
            static_cast<std::size_t>(std::min<std::uint64_t>(buffer_size - at, arrived_ - read_))};
}

void Link::consume(std::size_t n) {
    read_ += n;
    if (n > 0 && read_ == expected_length_) finish();
}

bool Link::ready(std::size_t unit) {
    return open() && (read_ == expected_length_ ||
                      arrived() - read_ >= std::min<std::uint64_t>(unit, expected_length_ - read_));
}

void Link::finish() {
    ++finished_in_;
    if (finished_in_ - confirmed_ < most_headings / 2) return;
    confirmed_ = finished_in_;
    Landing nothing;
    nothing.finished = finished_in_;
    const auto image = Record<Landing>::image(nothing);
    put(std::array{Remote::Part{at(block_->landing), image.data(), sizeof(image)}});
    ring();
}

// --- waiting

bool Link::arm(bool sending, std::vector<pollfd>& polled) {
    if (has_ended_ || drain()) return false;
    if (!armed_) {
        const std::uint64_t one = 1;
        put(std::array{Remote::Part{at(block_->armed), &one, sizeof(one)}});
        armed_ = true;
    }
    polled.push_back({socket_.get(), POLLIN | POLLRDHUP, 0});
    return sending ? can_send() : can_receive();
}

bool Link::can_receive() {
    if (finished_in_ < number_in_) return opened_ ? ready(unit_) : open();
    const std::uint64_t next = finished_in_ + 1;
    const std::optional<Heading> found = block_->headings[next % most_headings].load();
    return found && found->number == next && next > seen_;
}

bool Link::drain() {
    std::array<char, 64> rung;
    while (!has_ended_) {
        const ssize_t n = ::recv(socket_.get(), rung.data(), rung.size(), MSG_DONTWAIT);
        if (n < 0) {
            has_ended_ = errno != EAGAIN && errno != EINTR;
            break;
        }
        has_ended_ = n == 0;
        armed_ = false;
    }
    return has_ended_;
}

const char* Link::lost() {
    if (block_->farewell.load()) return "it closed the communicator";
    if (drain() || remote_.error() == ESRCH) return "its process ended or closed the communicator";
    return remote_.error() != 0 ? "its memory cannot be written to" : nullptr;
}

void Link::shut_down(std::optional<int> lost) {
    if (std::exchange(is_silent_, true)) return;
    Farewell farewell;
    farewell.lost = lost && *lost != peer().rank ? static_cast<std::uint32_t>(*lost) + 1 : 0;
    farewell.disagrees = shared_->disagreement ? 1 : 0;
    if (shared_->disagreement) farewell.found = *shared_->disagreement;
    const auto image = Record<Farewell>::image(farewell);
    put(std::array{Remote::Part{at(block_->farewell), image.data(), sizeof(image)}});
    ring();
}

std::optional<int> Link::blamed() const {
    const std::optional<Farewell> farewell = block_->farewell.load();
    if (!farewell || farewell->lost == 0) return std::nullopt;
    const int first = static_cast<int>(farewell->lost) - 1;
    return first == shared_->rank ? std::nullopt : std::optional(first);
}

// --- comparing calls

void Link::compare(const Call& mine) const {
    const auto check = [&](const Call& theirs) {
        const bool other = theirs.collective != mine.collective || theirs.root != mine.root;
        if (!theirs.is_message() && theirs.sequence == mine.sequence && other) throw_desync(mine, theirs);
    };
    if (mine.is_message()) return;
    if (const auto posted = block_->landing.load(); posted && posted->number > 0) check(posted->call);
    for (const Record<Heading>& heading : block_->headings) {
        if (const auto begun = heading.load()) check(begun->call);
    }
}

void Link::report_disagreement(const Call& mine, const Call& theirs) const {
    if (!shared_->disagreement) {
        shared_->disagreement = {{shared_->rank, peer().rank}, {mine, theirs}};
    }
}

void Link::throw_disagreement(const Call& /*during*/) const {
    const std::optional<Farewell> farewell = block_->farewell.load();
    if (!farewell || farewell->disagrees == 0) return;
    const auto& [ranks, calls] = farewell->found;
    if (!shared_->disagreement) shared_->disagreement = farewell->found;
    if (ranks[1] == shared_->rank && ranks[0] == peer().rank) throw_desync(calls[1], calls[0]);
    throw collectives::Error(collectives::ErrorKind::desync,
                             "ranks called different operations: " + collectives::name_ranks({ranks[0]}) +
                                 " is in " + calls[0].describe() + "; " +
                                 collectives::name_ranks({ranks[1]}) + " is in " + calls[1].describe() +
                                 ", as " + peer().name() + " has found",
                             {std::min(ranks[0], ranks[1]), std::max(ranks[0], ranks[1])});
}

}  // namespace vm_write
