// Sending: through the ring, or straight to the destination that the receiver has granted.
#include <algorithm>
#include <cstring>

#include "base/copy.hpp"
#include "verbs/link.hpp"
#include "verbs/tuning.hpp"

namespace collectives::verbs {

namespace {

// The fewest bytes of a piece of a message of which more is to come: it is written in eight pieces or so, to
// overlap with what makes it.
std::size_t shortest_piece(std::uint64_t length, std::size_t longest) {
    constexpr std::uint64_t pieces = 8;
    return static_cast<std::size_t>(
        std::min<std::uint64_t>(std::max<std::uint64_t>(length / pieces, direct_from), longest));
}

}  // namespace

void VerbsLink::begin(const Context& context, std::uint64_t length) {
    sending_ = &context;
    length_ = length;
    written_ = 0;
    released_ = 0;
    part_ = 0;
    started_ = false;
    has_source_ = false;
    source_.reset();
    in_use_.clear();
    ++ordinal_;
}

std::size_t VerbsLink::write(const std::byte* data, std::size_t n) {
    if (n == 0 && (length_ > 0 || started_)) return 0;
    progress();
    if (length_ >= asks_from_) return write_long(data, n);
    std::size_t done = 0;
    do {
        const std::size_t some = std::min(n - done, pieces_.of_record);
        if (!send_record(data + done, some)) break;
        done += some;
    } while (done < n);
    return done;
}

std::size_t VerbsLink::write_long(const std::byte* data, std::size_t n) {
    // The head alone, by which the receiver compares the calls.
    if (!started_ && !send_record(data, 0)) return 0;
    const Grant* const grant = answer();
    if (grant == nullptr) return 0;
    if (!has_source_) {
        has_source_ = true;
        auto* const first = const_cast<std::byte*>(data - written_);
        source_ = regions_->find({first, static_cast<std::size_t>(length_)}, false);
    }
    const bool is_straight = grant->address != 0 && source_;
    const std::size_t most = is_straight ? pieces_.straight : pieces_.of_record;
    if (is_straight) n = std::min(n, static_cast<std::size_t>(std::max(grant->end, written_) - written_));
    // A message that is still being reduced grows by records: pieces as short as these would cost many
    // requests.
    const bool is_limit = !is_straight || written_ + n == length_ || written_ + n == grant->end;
    const std::size_t least = is_limit ? 1 : shortest_piece(length_, pieces_.straight);
    std::size_t done = 0;
    while (n - done >= least) {
        const std::size_t some = std::min(n - done, most);
        if (is_straight ? !send_piece(*grant, data + done, some) : !send_record(data + done, some)) break;
        done += some;
    }
    return done;
}

const Grant* VerbsLink::answer() const {
    const bool is_for_this = grants_received_ > 0 && granted_.ordinal == ordinal_ &&
                             granted_.fingerprint == sending_->fingerprint && granted_.message == length_;
    return is_for_this ? &granted_ : nullptr;
}

bool VerbsLink::take_grant(std::uint32_t bytes) {
    if (bytes != sizeof(Grant)) return false;
    const std::size_t place = static_cast<std::size_t>(grants_received_++ % record_slots);
    Grant grant;
    std::memcpy(&grant, own_->ring->bytes().data() + ring_bytes + grants_bytes(place), sizeof(grant));
    if (grant.end > grant.message || grant.address > ~std::uint64_t{0} - grant.message) return false;
    granted_ = grant;
    return true;
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
    started_ = true;
    Write write;
    write.address = ring_address_ + at;
    write.key = ring_key_;
    if (source_ && n > 0) {
        write.add({record, sizeof(head)}, buffer_.local_key());
        write.add({data, n}, source_->local_key());
    } else {
        if (n > 0) copy_bytes(record + sizeof(head), data, n);
        counters_.copied.add(n);
        write.add({record, bytes}, buffer_.local_key());
    }
    write.is_signalled = source_ || written_ + n == length_;
    post(write, Carried::record);
    count_sent(sizeof(head));
    note_posted(n, source_ != nullptr);
    return true;
}

bool VerbsLink::send_piece(const Grant& grant, const std::byte* data, std::size_t n) {
    if (!can_send() || !out_.take_slot()) return false;
    Write write;
    write.address = grant.address + written_;
    write.key = grant.key;
    write.is_signalled = true;
    write.add({data, n}, source_->local_key());
    post(write, Carried::piece);
    counters_.straight.add(n);
    note_posted(n, true);
    return true;
}

void VerbsLink::note_posted(std::size_t n, bool from_caller) {
    written_ += n;
    counters_.payload.add(n);
    count_sent(n);
    if (from_caller) in_use_.push_back({own_->queue->posted(), written_});
}

std::uint64_t VerbsLink::released() {
    if (!source_) return written_;
    if (!in_use_.empty()) progress();
    while (!in_use_.empty() && in_use_.front().request <= own_->queue->completed()) {
        released_ = in_use_.front().end;
        in_use_.pop_front();
    }
    if (released_ == length_) source_.reset();
    return released_;
}

}  // namespace collectives::verbs
