#include "inproc/link.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/copy.hpp"

namespace collectives {

namespace {

std::uint64_t tag_of(std::uint64_t number, const Context& context) {
    return number << 32 | context.fingerprint;
}
bool has_number(std::uint64_t tag, std::uint64_t number) { return tag >> 32 == (number & 0xffffffff); }

}  // namespace

InprocLink::InprocLink(Peer peer, int rank, std::shared_ptr<InprocEndpoint> own,
                       std::shared_ptr<InprocEndpoint> theirs)
    : Link(std::move(peer)),
      rank_(rank),
      own_(std::move(own)),
      theirs_(std::move(theirs)),
      out_(own_->channel_to(this->peer().rank)),
      in_(theirs_->channel_to(rank)),
      calls_(*this, rank, own_->calls(), theirs_->calls()) {
    own_->set_link(this->peer().rank, this);
}

InprocLink::~InprocLink() { own_->set_link(peer().rank, nullptr); }

void InprocLink::begin(const Context& context, std::uint64_t length) {
    sending_ = &context;
    length_ = length;
    written_ = 0;
    started_ = false;
}

std::size_t InprocLink::write(const std::byte* data, std::size_t n) {
    if (n == 0 && (length_ > 0 || started_)) return 0;
    if (!started_) {
        const std::uint64_t finished = out_.finished.load(std::memory_order_acquire);
        if (number_ - finished >= InprocChannel::slots_per_channel) return 0;
        ++number_;
    }
    InprocSlot& slot = out_.slot(number_);
    if (is_eager()) {
        if (slot.copy.size() < length_) slot.copy.resize(length_);
        if (n > 0) std::memcpy(slot.copy.data() + written_, data, n);
    }
    written_ += n;
    count_sent(n);
    slot.available.store(written_, std::memory_order_release);
    if (!std::exchange(started_, true)) {
        slot.call = sending_->call;
        slot.length = length_;
        slot.data = is_eager() ? slot.copy.data() : data;
        slot.consumed.store(0, std::memory_order_relaxed);
        slot.tag.store(tag_of(number_, *sending_), std::memory_order_release);
    }
    theirs_->wake();
    return n;
}

std::uint64_t InprocLink::released() {
    if (!started_ || is_eager()) return written_;
    return out_.slot(number_).consumed.load(std::memory_order_acquire);
}

std::optional<Announcement> InprocLink::announced(const Context& context, std::size_t) {
    const InprocSlot& slot = in_.slot(finished_ + 1);
    if (!has_number(slot.tag.load(std::memory_order_seq_cst), finished_ + 1)) return std::nullopt;
    if (!slot.call.is_message()) return Announcement{calls_.instead_of(context.call), 0, false};
    return Announcement{slot.call, slot.length, true};
}

void InprocLink::expect(const Context& context, std::uint64_t length) {
    expected_ = &context;
    expected_length_ = length;
    read_ = 0;
    slot_ = nullptr;
}

bool InprocLink::open() {
    if (slot_ != nullptr) return true;
    InprocSlot& slot = in_.slot(finished_ + 1);
    const std::uint64_t tag = slot.tag.load(std::memory_order_seq_cst);
    if (!has_number(tag, finished_ + 1)) return false;
    if (static_cast<std::uint32_t>(tag) != expected_->fingerprint) calls_.throw_other_call(expected_->call);
    if (slot.length != expected_length_) {
        throw_desync(expected_->call, calls_.instead_of(expected_->call),
                     ", with a message of another length");
    }
    slot_ = &slot;
    if (expected_length_ == 0) finish();
    return true;
}

std::span<const std::byte> InprocLink::next() {
    if (!open() || read_ == expected_length_) return {};
    // A rank that fails sets this before its memory may be used for something else. Short messages lie in
    // memory that both ranks keep.
    if (expected_length_ > inproc_eager_up_to && in_.abandoned.load(std::memory_order_seq_cst)) {
        throw_lost(expected_->call, "it gave the operation up");
    }
    const std::uint64_t available = slot_->available.load(std::memory_order_acquire);
    return {slot_->data + read_, static_cast<std::size_t>(available - read_)};
}

std::size_t InprocLink::read(std::byte* data, std::size_t n, Stores stores) {
    const std::span<const std::byte> found = next();
    n = std::min(n, found.size());
    if (n == 0) return 0;
    copy_by(stores)(data, found.data(), n);
    consume(n);
    return n;
}

std::span<const std::byte> InprocLink::lend(std::size_t unit) {
    const std::span<const std::byte> found = next();
    return found.size() < unit ? std::span<const std::byte>() : found;
}

void InprocLink::consume(std::size_t n) {
    read_ += n;
    slot_->consumed.store(read_, std::memory_order_release);
    if (read_ == expected_length_) finish();
    // The sender of a long message waits until it was read; the sender of short messages may wait for a slot.
    theirs_->wake();
}

void InprocLink::finish() { in_.finished.store(++finished_, std::memory_order_release); }

bool InprocLink::ready(std::size_t unit) {
    if (!open()) return false;
    return read_ == expected_length_ || slot_->available.load(std::memory_order_acquire) - read_ >=
                                            std::min<std::uint64_t>(unit, expected_length_ - read_);
}

void InprocLink::abandon() {
    if (!started_ || is_eager() || finished()) return;
    out_.abandoned.store(true, std::memory_order_seq_cst);
    // Either the peer sees `abandoned`, or this rank sees that the peer is in a pass, and waits for its end.
    theirs_->wait_for_pass();
}

std::optional<int> InprocLink::blamed() const {
    const int first = theirs_->lost();
    return first < 0 || first == rank_ ? std::nullopt : std::optional(first);
}

void InprocLink::shut_down(std::optional<int>) {
    if (own_->calls().disagreement()) {
        theirs_->calls().accuse(rank_);
        std::atomic_thread_fence(std::memory_order_seq_cst);
    }
    theirs_->wake();
}

}  // namespace collectives
