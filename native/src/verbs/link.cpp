#include "verbs/link.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/copy.hpp"
#include "base/error.hpp"
#include "verbs/tuning.hpp"

namespace collectives::verbs {

namespace {

constexpr std::uint32_t all_receives = record_slots + reports_under_way + receives_at_a_time;
constexpr const char* closed = "it closed the communicator";

}  // namespace

OwnEnd::OwnEnd(const std::shared_ptr<Device>& device, const Port& port)
    : ring(std::make_unique<Registered>(device, ring_bytes, true)),
      queue(std::make_unique<QueuePair>(device, port, send_depth, all_receives)) {}

Endpoint OwnEnd::describe() const {
    Endpoint end = verbs::describe(queue->port());
    end.queue_pair = queue->number();
    end.first_packet = queue->first_packet();
    end.ring_address = ring->address();
    end.ring_units = units(ring_bytes);
    end.ring_key = ring->remote_key();
    end.slots = record_slots;
    return end;
}

VerbsLink::VerbsLink(Peer peer, int rank, std::unique_ptr<OwnEnd> own, const Endpoint& theirs,
                     UniqueFd socket, std::size_t piece)
    : Link(std::move(peer)),
      rank_(rank),
      own_(std::move(own)),
      ring_address_(theirs.ring_address),
      ring_key_(theirs.ring_key),
      piece_(piece),
      buffer_(own_->queue->device(), static_cast<std::size_t>(theirs.ring_units) * unit_bytes, false),
      side_(std::move(socket)),
      out_(theirs.ring_units, theirs.slots),
      in_(units(ring_bytes), record_slots),
      sizes_(in_.size()) {
    own_->queue->connect(theirs, this->peer().name());
    side_.say_ready();
    count_inbox(ring_bytes);
}

bool VerbsLink::progress() {
    if (!side_.is_ready()) side_.look();
    const bool any = own_->queue->poll(
        [this](std::uint32_t immediate, std::uint32_t bytes) { take_up(immediate, bytes); });
    if (any && own_->queue->repost() > 0) in_.repost(std::exchange(records_used_, 0));
    report();  // also if nothing has come: an earlier one may have found no place
    return any;
}

void VerbsLink::take_up(std::uint32_t immediate, std::uint32_t bytes) {
    const Immediate said = Immediate::decode(immediate);
    const bool is_possible =
        out_.credit(said) && (!said.has_record || (bytes >= sizeof(RecordHead) && in_.arrive(bytes)));
    if (!is_possible) {
        problem_ = "it returned credits that it did not have, or sent more than there was space for";
        return;
    }
    if (!said.has_record) return;
    sizes_[(in_.arrived() - 1) % sizes_.size()] = bytes;
    ++records_used_;
}

void VerbsLink::report() {
    if (!in_.is_due() || !can_send()) return;
    own_->queue->write({}, 0, 0, 0, in_.tell(false).encode(), false);
    ++reports_;
}

// --- sending

void VerbsLink::begin(const Context& context, std::uint64_t length) {
    sending_ = &context;
    length_ = length;
    written_ = 0;
    part_ = 0;
    started_ = false;
    ++ordinal_;
}

std::size_t VerbsLink::write(const std::byte* data, std::size_t n) {
    if (n == 0 && (length_ > 0 || started_)) return 0;
    progress();
    std::size_t done = 0;
    do {
        const std::size_t some = std::min(n - done, piece_);
        if (!send_record(data + done, some)) break;
        done += some;
    } while (done < n);
    return done;
}

bool VerbsLink::send_record(const std::byte* data, std::size_t n) {
    if (!can_send()) return false;
    const std::size_t bytes = sizeof(RecordHead) + n;
    const std::optional<std::uint64_t> position = out_.take(bytes);
    if (!position) return false;
    const std::size_t at = out_.offset(*position);
    std::byte* const record = buffer_.bytes().data() + at;
    const RecordHead head{.call = sending_->call,
                          .message = length_,
                          .fingerprint = sending_->fingerprint,
                          .ordinal = ordinal_,
                          .payload = static_cast<std::uint32_t>(n),
                          .part = part_++};
    std::memcpy(record, &head, sizeof(head));
    if (n > 0) copy_bytes(record + sizeof(head), data, n);
    started_ = true;
    written_ += n;
    own_->queue->write({record, bytes}, buffer_.local_key(), ring_address_ + at, ring_key_,
                       in_.tell(true).encode(), written_ == length_);
    payload_ += n;
    count_sent(bytes);
    return true;
}

// --- receiving

bool VerbsLink::look_at_record() {
    if (head_) return true;
    if (consumed_ == in_.arrived()) progress();
    if (consumed_ == in_.arrived()) return false;
    const std::uint32_t bytes = sizes_[consumed_ % sizes_.size()];
    RecordHead head;
    std::memcpy(static_cast<void*>(&head), own_->ring->bytes().data() + in_.offset(in_.next(bytes)),
                sizeof(head));
    if (head.payload != bytes - sizeof(head)) {
        problem_ = "it sent a record of another length than it says";
        return false;
    }
    head_ = head;
    offset_ = 0;
    return true;
}

void VerbsLink::free_record() {
    in_.consume(sizes_[consumed_ % sizes_.size()]);
    ++consumed_;
    head_.reset();
    report();
}

std::optional<Announcement> VerbsLink::announced(const Context& /*context*/, std::size_t /*eager*/) {
    if (!look_at_record() || head_->ordinal != ordinal_in_ + 1) return std::nullopt;
    const bool is_message = head_->call.is_message();
    return Announcement{head_->call, is_message ? head_->message : 0, is_message};
}

void VerbsLink::expect(const Context& context, std::uint64_t length) {
    expected_ = &context;
    expected_length_ = length;
    ++ordinal_in_;
    part_in_ = 0;
    read_ = 0;
    opened_ = false;
}

bool VerbsLink::open() {
    if (opened_) return true;
    if (!look_at_record()) return false;
    if (head_->fingerprint != expected_->fingerprint) {
        throw_desync(expected_->call, head_->call,
                     head_->call == expected_->call ? ", after other operations than this rank" : "");
    }
    if (head_->message != expected_length_) {
        throw_desync(expected_->call, head_->call,
                     ", with a message of " + std::to_string(head_->message) + " bytes instead of " +
                         std::to_string(expected_length_));
    }
    opened_ = true;
    front();
    return true;
}

std::span<const std::byte> VerbsLink::front() {
    while (look_at_record()) {
        if (offset_ == 0 &&
            (head_->ordinal != ordinal_in_ || head_->part != part_in_ || head_->payload > left())) {
            // All that was expected has been read: this is of a later message.
            if (left() == 0 && head_->ordinal != ordinal_in_) return {};
            throw_refused(expected_->call, "it sent a record that is not the next one of its message");
        }
        const std::size_t payload = head_->payload;
        if (offset_ < payload) {
            const std::size_t at =
                in_.offset(in_.next(sizeof(RecordHead) + payload)) + sizeof(RecordHead) + offset_;
            return {own_->ring->bytes().data() + at, payload - offset_};
        }
        ++part_in_;
        free_record();
        if (left() == 0) return {};
    }
    return {};
}

std::size_t VerbsLink::read(std::byte* data, std::size_t n, Stores stores) {
    if (!open()) return 0;
    std::size_t done = 0;
    while (done < n) {
        const std::span<const std::byte> found = front();
        if (found.empty()) break;
        const std::size_t some = std::min(n - done, found.size());
        copy_by(stores)(data + done, found.data(), some);
        done += some;
        consume(some);
    }
    return done;
}

std::span<const std::byte> VerbsLink::lend(std::size_t unit) {
    if (!open() || left() == 0) return {};
    const std::span<const std::byte> found = front();
    return found.size() < unit ? std::span<const std::byte>() : found;
}

void VerbsLink::consume(std::size_t n) {
    if (n == 0) return;  // there may be no record in front
    read_ += n;
    offset_ += n;
    // The space of the record is free at once; nothing later may be looked at before it is asked for.
    if (offset_ < head_->payload) return;
    ++part_in_;
    free_record();
}

bool VerbsLink::ready(std::size_t unit) {
    return open() && (left() == 0 || front().size() >= std::min<std::uint64_t>(unit, left()));
}

// --- waiting, and the end

bool VerbsLink::arm(bool /*sending*/, std::vector<pollfd>& polled) {
    own_->queue->arm();
    if (side_.look() || progress()) return true;
    polled.push_back({own_->queue->descriptor(), POLLIN, 0});
    if (!side_.has_ended()) polled.push_back({side_.descriptor(), POLLIN | POLLRDHUP, 0});
    return false;
}

const char* VerbsLink::lost() {
    side_.look();
    progress();
    if (!problem_.empty()) return problem_.c_str();
    if (const char* const failure = own_->queue->failure()) return failure;
    if (!side_.has_ended()) return nullptr;
    if (!side_.goodbye()) return "its process ended or closed the communicator";
    // What it sent before it closed may still be on its way.
    constexpr std::chrono::seconds on_its_way{1};
    if (in_.arrived() >= side_.goodbye()->sent) return closed;
    if (!ended_at_) ended_at_ = Clock::now();
    return Clock::now() - *ended_at_ > on_its_way ? closed : nullptr;
}

void VerbsLink::shut_down(std::optional<int> lost) {
    if (std::exchange(is_silent_, true)) return;
    side_.say_goodbye(out_.sent(), lost == peer().rank ? std::nullopt : lost);
}

std::optional<int> VerbsLink::blamed() const {
    if (!side_.goodbye() || side_.goodbye()->lost < 0 || side_.goodbye()->lost == rank_) return std::nullopt;
    return side_.goodbye()->lost;
}

VerbsLink::~VerbsLink() {
    // A queue pair that is destroyed sends nothing more, also not what a call has already reported as sent.
    constexpr double enough = 1.0;  // seconds
    const Deadline deadline(enough);
    while (!own_->queue->is_flushed() && own_->queue->failure() == nullptr && !side_.has_ended() &&
           !deadline.passed()) {
        side_.look();
        if (!progress()) ::sched_yield();
    }
    own_.reset();  // before the buffer, which it may still be sending
}

}  // namespace collectives::verbs
