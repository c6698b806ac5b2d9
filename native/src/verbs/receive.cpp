// Receiving: out of the ring, or by granting the sender the destination.
#include <algorithm>
#include <cstring>

#include "base/copy.hpp"
#include "verbs/link.hpp"
#include "verbs/tuning.hpp"

namespace collectives::verbs {

bool VerbsLink::look_at_record() {
    if (head_) return true;
    if (consumed_ == in_.records()) progress();
    if (consumed_ == in_.records()) return false;
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
    end_grant();
    waits_for_answer_ = length >= own_->settings.direct_from;
}

void VerbsLink::end_grant() {
    waits_for_answer_ = false;
    destination_.reset();
    granted_end_ = 0;
    straight_ = 0;
}

void VerbsLink::note_read(std::size_t n) {
    read_ += n;
    if (left() == 0) end_grant();
}

void VerbsLink::grant(std::byte* message, std::uint64_t end) {
    if (!waits_for_answer_ || end <= granted_end_) return;
    // Not for every few bytes more: the sender has enough to do meanwhile.
    if (granted_end_ > 0 && end < expected_length_ && end - granted_end_ < piece_bytes) return;
    if (message != nullptr && !destination_) {
        destination_ = regions_->find({message, static_cast<std::size_t>(expected_length_)}, true);
        if (!destination_) message = nullptr;
    }
    if (message == nullptr) {
        waits_for_answer_ = !send_grant(0, 0);
    } else if (send_grant(reinterpret_cast<std::uintptr_t>(message), end)) {
        granted_end_ = end;
    }
}

bool VerbsLink::send_grant(std::uint64_t address, std::uint64_t end) {
    if (!can_send() || !out_.take_slot()) return false;
    const Grant grant{.address = address,
                      .end = end,
                      .message = expected_length_,
                      .fingerprint = expected_->fingerprint,
                      .ordinal = ordinal_in_,
                      .key = destination_ ? destination_->remote_key() : 0};
    const std::size_t place = grants_bytes(static_cast<std::size_t>(grants_sent_++ % slots_));
    std::byte* const at = buffer_.bytes().data() + ring_bytes_ + place;
    std::memcpy(at, &grant, sizeof(grant));
    Write write;
    write.address = ring_address_ + ring_bytes_ + place;
    write.key = ring_key_;
    write.add({at, sizeof(grant)}, buffer_.local_key());
    post(write, Carried::grant);
    counters_.grants.add(1);
    return true;
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
            // All that was expected has been read, or is in its destination: this is of a later message.
            const bool is_later = head_->ordinal != ordinal_in_;
            if (is_later && (left() == 0 || straight_ == expected_length_)) return {};
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
    grant(data - read_, read_ + n);
    if (!open()) return 0;
    if (granted_end_ > 0 && straight_ == read_) progress();
    if (straight_ > read_) {
        const auto came = static_cast<std::size_t>(std::min<std::uint64_t>(n, straight_ - read_));
        note_read(came);
        return came;
    }
    std::size_t done = 0;
    while (done < n) {
        const std::span<const std::byte> found = front();
        if (found.empty()) break;
        const std::size_t some = std::min(n - done, found.size());
        copy_by(stores)(data + done, found.data(), some);
        counters_.copied.add(some);
        done += some;
        consume(some);
    }
    return done;
}

std::span<const std::byte> VerbsLink::lend(std::size_t unit) {
    grant(nullptr, expected_length_);
    if (!open() || left() == 0) return {};
    const std::span<const std::byte> found = front();
    return found.size() < unit ? std::span<const std::byte>() : found;
}

void VerbsLink::consume(std::size_t n) {
    if (n == 0) return;  // there may be no record in front
    note_read(n);
    offset_ += n;
    // The space of the record is free at once; nothing later may be looked at before it is asked for.
    if (offset_ < head_->payload) return;
    ++part_in_;
    free_record();
}

bool VerbsLink::ready(std::size_t unit) {
    return open() && (left() == 0 || front().size() >= std::min<std::uint64_t>(unit, left()));
}

}  // namespace collectives::verbs
