// Receiving: reading lines in their order, and the bytes that they announce.
#include <algorithm>
#include <utility>

#include "base/copy.hpp"
#include "base/mechanisms.hpp"
#include "shm/link.hpp"
#include "shm/tuning.hpp"

namespace collectives {

namespace {

// Lines with inline data are acknowledged in batches, because no sender waits for them.
constexpr std::uint64_t quiet_lines = lines_per_link / 2;
// Bytes that are read at a time by CMA for `lend`, so that the bytes of several peers stay in the caches.
constexpr std::size_t looked_at_once = 64 << 10;

}  // namespace

void ShmLink::expect(const Context& context, std::uint64_t length) {
    expected_ = &context;
    expected_length_ = length;
    read_ = 0;
    opened_ = false;
    refusing_ = false;
    if (context.call.is_message()) consume_head();
}

bool ShmLink::post_recv(const Posting& posting) {
    const auto& [tag, place, length, replaces] = posting;
    if (!uses(Mechanism::relay) || wanted_ != nullptr || length < tuning::direct_from_shm ||
        !own_->in_heap(place, length)) {
        return false;
    }
    wanted_ = place;
    out_.post.offset = own_->offset_of(place);
    out_.post.length = length;
    out_.post.replaces = replaces;
    out_.post.tag.store(tag, std::memory_order_release);
    return true;
}

void ShmLink::withdraw() {
    wanted_ = nullptr;
    out_.post.tag.store(0, std::memory_order_release);
}

bool ShmLink::quiesce() {
    std::byte* const place = wanted_;
    withdraw();
    return place == nullptr || own_->withdraw(place, out_.post.length);
}

bool ShmLink::next_slice() {
    if (!slice_.empty() || remote_left_ > 0) return true;
    if (opened_ && read_ == expected_length_) return false;
    Line& line = in_.lines[line_in_ % lines_per_link];
    const std::uint64_t tag = line.tag.load(std::memory_order_seq_cst);
    if (tag >> 32 != (line_in_ & 0xffffffff)) return false;
    if (static_cast<std::uint32_t>(tag) != expected_->fingerprint) calls_.throw_other_call(expected_->call);
    opened_ = true;
    in_line_ = true;
    if (expected_length_ <= Line::inline_bytes) {
        slice_ = {line.data.data(), static_cast<std::size_t>(expected_length_)};
        if (slice_.empty()) finish_line();
        return !slice_.empty();
    }
    const std::uint64_t offset = line.slice.offset;
    const std::uint64_t n = line.slice.length;
    staged_ = line.slice.staged;
    place_in_ = line.slice.place;
    if (place_in_ > 0) {
        const bool sound = places_.may_come(place_in_ - 1) && n > 0 &&
                           n <= std::min(own_->geometry().staging_bytes, expected_length_ - read_);
        if (!sound) throw_other_length();
        slice_ = {places_.at(place_in_ - 1), static_cast<std::size_t>(n)};
        return true;
    }
    if (offset == where_posted && wanted_ != nullptr && n > 0 && n <= expected_length_ - read_) {
        slice_ = {wanted_ + read_, static_cast<std::size_t>(n)};
        return true;
    }
    if (offset != where_posted && (offset & is_address) != 0 && n > 0 && n <= expected_length_ - read_) {
        if (refusing_) {
            finish_line();
            return next_slice();
        }
        address_ = offset & ~is_address;
        remote_left_ = n;
        return true;
    }
    const std::size_t total = theirs_->geometry().total();
    const bool inside = n <= total && offset <= total - n;
    if (!inside || n == 0 || n > expected_length_ - read_) throw_other_length();
    slice_ = {theirs_->at(offset), static_cast<std::size_t>(n)};
    return true;
}

std::size_t ShmLink::read(std::byte* data, std::size_t n, Stores stores) {
    std::size_t done = 0;
    while (done < n && next_slice()) {
        std::size_t part = 0;
        if (slice_.empty()) {
            part = std::min<std::size_t>(n - done, remote_left_);
            const bool jointly =
                !expected_->traffic.sends && part == remote_left_ && part >= tuning::joint_from;
            if (jointly && uses(Mechanism::joint_copy)) {
                if (!read_jointly(data + done)) {
                    if (joint_) return done;
                    continue;
                }
            } else if (!read_remote(data + done, part)) {
                continue;
            }
            read_ += part;
            if (remote_left_ == 0) finish_line();
        } else {
            part = std::min(n - done, slice_.size());
            read_staged(staged_, stores, data + done, slice_.data(), part);
            consume(part);
        }
        done += part;
    }
    return done;
}

std::span<const std::byte> ShmLink::lend(std::size_t) {
    if (next_slice() && slice_.empty()) {
        if (!bounce_) bounce_ = std::make_unique_for_overwrite<std::byte[]>(looked_at_once);
        const std::size_t n = std::min<std::size_t>(looked_at_once, remote_left_);
        if (read_remote(bounce_.get(), n)) {
            slice_ = {bounce_.get(), n};
        } else {
            next_slice();
        }
    }
    return slice_;
}

bool ShmLink::ready(std::size_t) { return next_slice() || (opened_ && read_ == expected_length_); }

void ShmLink::consume(std::size_t n) {
    slice_ = slice_.subspan(n);
    read_ += n;
    if (slice_.empty() && remote_left_ == 0 && in_line_) finish_line();
}

void ShmLink::finish_line() {
    in_line_ = false;
    const bool quiet = expected_length_ <= Line::inline_bytes;
    if (!quiet) ensure_valid(expected_->call);
    if (place_in_ > 0) places_.own(place_in_ - 1);
    place_in_ = 0;
    pass_line(quiet);
}

void ShmLink::pass_line(bool quiet) {
    const std::uint64_t finished = line_in_++;
    if (quiet && finished - acknowledged_in_ < quiet_lines) return;
    acknowledged_in_ = finished;
    in_.acknowledged.store(finished, std::memory_order_seq_cst);
    wake_peer();
}

bool ShmLink::received() {
    if (!opened_) next_slice();
    return opened_ && read_ == expected_length_;
}

}  // namespace collectives
