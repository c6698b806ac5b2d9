// Sending: the protocol for a message's bytes, and when they may be overwritten again.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/copy.hpp"
#include "base/mechanisms.hpp"
#include "shm/link.hpp"
#include "shm/tuning.hpp"

namespace collectives {

void ShmLink::begin(const Context& context, std::uint64_t length) {
    sending_ = &context;
    length_ = length;
    written_ = 0;
    released_ = 0;
    started_ = false;
    headed_ = !context.call.is_message();
    restaged_ = 0;
    peer_reads_ = in_.reads_memory.load(std::memory_order_acquire);
    if (length > Line::inline_bytes) {
        carriage_ = &choice_(context.traffic, own_->geometry(), is_oversubscribed());
    }
    changes_places_ = fits_places() && places_.has_some();
}

bool ShmLink::fits_places() const {
    return length_ >= page_size && length_ <= carriage_->placed_up_to && uses(Mechanism::places);
}

std::size_t ShmLink::longest_piece() const {
    const std::uint64_t piece = round_up(length_ / carriage_->pieces, page_size);
    const std::uint64_t most =
        std::min<std::uint64_t>(carriage_->longest_piece, own_->geometry().staging_bytes);
    return std::min(std::max(piece, tuning::smallest_piece), most);
}

bool ShmLink::stages(const std::byte* data, std::size_t n) {
    if (length_ <= Line::inline_bytes) return false;
    if (length_ >= tuning::direct_from_shm && own_->in_heap(data, n)) return false;
    return !is_read_by_cma(data, n);
}

bool ShmLink::is_read_by_cma(const std::byte* data, std::size_t n) {
    if (refused_) return false;
    if (peer_reads_ == Reads::never || own_->in_heap(data, n)) return false;
    const Pulled& pulled = peer_reads_ == Reads::quickly ? carriage_->pulled : carriage_->pulled_slowly;
    return length_ >= pulled.from && length_ < pulled.below;
}

std::uint64_t ShmLink::acknowledged() {
    acknowledged_ = out_.acknowledged.load(std::memory_order_seq_cst);
    return acknowledged_;
}

bool ShmLink::has_line() {
    return line_ - acknowledged_ < lines_per_link || line_ - acknowledged() < lines_per_link;
}

bool ShmLink::has_finished(std::uint64_t line) { return acknowledged_ >= line || acknowledged() >= line; }

std::size_t ShmLink::write(const std::byte* data, std::size_t n) {
    if (written_ < restaged_) return 0;
    const std::uint64_t before = line_;
    const std::size_t taken = put(data, n);
    if (line_ != before) wake_peers(std::array{this});
    return taken;
}

std::size_t ShmLink::put(const std::byte* data, std::size_t n) {
    if (!headed_ && !head()) return 0;
    if (length_ <= Line::inline_bytes) {
        if (started_ || n < length_ || !has_line()) return 0;
        Line& line = next_line();
        if (length_ > 0) std::memcpy(line.data.data(), data, length_);
        publish(line);
        written_ = released_ = length_;
        count_sent(length_);
        return length_;
    }
    if (n == 0) return 0;
    if (stages(data, n)) {
        n = std::min(n, longest_piece());
        if (fits_places() && places_.has_some()) {
            if (!has_line()) return 0;
            const std::uint32_t number = places_.give();
            copy_bytes(places_.at(number), data, n);
            announce(0, n, Staged::shared, number + 1);
            return n;
        }
        // The peer probably sends a message in a place at the same time, which gives this rank that place.
        if (changes_places_ && !std::exchange(waited_, true)) return 0;
        std::byte* const slot = staging_for(n);
        if (slot == nullptr) return 0;
        const Staged staged = stage_(slot, data, n, true);
        announce(own_->offset_of(slot), n, staged);
        return n;
    }
    if (!has_line()) return 0;
    // Pieces are multiples of `slot_bytes`, so that no piece on which ranks work together is divided.
    const std::size_t slot = own_->geometry().slot_bytes;
    const bool pulled = is_read_by_cma(data, n);
    const std::size_t piece = pulled ? tuning::cma_piece : tuning::direct_piece;
    n = std::min(n, std::max(piece - piece % slot, slot));
    data_ = data - written_;
    direct_.push_back({line_ + 1, written_ + n});
    if (pulled) {
        announce(reinterpret_cast<std::uintptr_t>(data) | is_address, n);
    } else {
        announce(own_->offset_of(data), n);
    }
    return n;
}

std::byte* ShmLink::window(std::uint64_t tag, std::uint64_t length, std::uint64_t read) const {
    const Post& post = in_.post;
    if (post.tag.load(std::memory_order_acquire) != tag || post.length != length) return nullptr;
    if (post.replaces != 0 && post.replaces != read) return nullptr;
    std::byte* const place = theirs_->at(post.offset);
    return theirs_->in_heap(place, length) ? place : nullptr;
}

std::size_t ShmLink::announce_posted(std::size_t n) {
    if (n == 0 || !has_line()) return 0;
    announce(where_posted, n);
    return n;
}

std::uint64_t ShmLink::announce(std::uint64_t offset, std::size_t n, Staged staged, std::uint32_t place) {
    Line& line = next_line();
    line.slice.offset = offset;
    line.slice.length = n;
    line.slice.staged = staged;
    line.slice.place = place;
    publish(line);
    waited_ = false;
    written_ += n;
    count_sent(n);
    if (direct_.empty()) released_ = written_;
    return line_;
}

Line& ShmLink::next_line() {
    passed_by_[++line_ % lines_per_link] = passed_;
    return out_.lines[line_ % lines_per_link];
}

std::byte* ShmLink::staging_for(std::size_t n) {
    if (!has_line()) return nullptr;
    const std::size_t room = own_->geometry().link_staging();
    // Whole pages, since copies are fast if source and destination both begin at a page.
    const std::size_t used = std::min(round_up(n, page_size), room);
    std::uint64_t begin = passed_;
    const std::size_t at = begin % room;
    if (at + used > room) begin += room - at;
    const std::uint64_t end = begin + used;
    if (end - passed_by_[acknowledged_ % lines_per_link] > room &&
        end - passed_by_[acknowledged() % lines_per_link] > room) {
        return nullptr;
    }
    passed_ = end;
    return own_->staging(peer().rank) + begin % room;
}

void ShmLink::publish(Line& line) {
    const std::uint64_t tag = line_ << 32 | sending_->fingerprint;
    line.tag.store(tag, std::memory_order_release);
    started_ = true;
}

std::uint64_t ShmLink::released() {
    if (!direct_.empty()) {
        const std::uint64_t finished = acknowledged();
        if (!refused_ && out_.refused.load(std::memory_order_acquire) >= direct_.front().line) {
            restage_refused();
        }
        while (!direct_.empty() && direct_.front().line <= finished) {
            released_ = direct_.front().end;
            direct_.pop_front();
        }
        if (direct_.empty()) released_ = written_;
    }
    if (!direct_.empty()) help();
    while (written_ < restaged_ && put(data_ + written_, restaged_ - written_) > 0) {
        wake_peers(std::array{this});
    }
    return released_;
}

bool ShmLink::finished() { return started_ && written_ == length_ && released() == length_; }

}  // namespace collectives
