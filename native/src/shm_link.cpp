#include "shm_link.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "copy.hpp"
#include "error.hpp"
#include "wait.hpp"

namespace collectives {

namespace {

// Below this, copying is cheaper than waiting until the peer has read the original.
constexpr std::size_t direct_from_shm = 2 << 10;
constexpr std::size_t direct_from_thread = 4 << 10;
// Directly read memory is handed over in pieces, so that what follows can start on the first ones.
constexpr std::size_t direct_piece = 1 << 20;
// Lines without a slot are acknowledged in batches: nobody waits for them.
constexpr std::uint64_t quiet_lines = lines_per_link / 2;
// The offset that stands for: where it was wanted.
constexpr std::uint64_t where_posted = ~std::uint64_t{0};
// From this size on the peer may help.
constexpr std::size_t joint_from = 64 << 10;
// So much at a time of what is read out of another process to be looked at: several peers' stays in the
// caches.
constexpr std::size_t pulled_slice = 64 << 10;
// Shorter pieces cost more than who waits for them gains.
constexpr std::uint64_t smallest_piece = 16 << 10;
// With this bit an offset is an address in the sender's process.
constexpr std::uint64_t is_address = std::uint64_t{1} << 63;

}  // namespace

ShmLink::ShmLink(Peer peer, int rank, std::shared_ptr<Arena> own, std::shared_ptr<Arena> theirs,
                 bool same_process, pid_t pid)
    : Link(std::move(peer)),
      rank_(rank),
      same_process_(same_process),
      own_(std::move(own)),
      theirs_(std::move(theirs)),
      out_(own_->outlet(this->peer().rank)),
      in_(theirs_->outlet(rank)),
      places_(*own_, rank, *theirs_, this->peer().rank),
      remote_(pid) {
    const Reads how = own_->header().reads;
    if (same_process || how == Reads::never) return;
    Header& header = theirs_->header();
    std::array<std::uint64_t, 2> cookie{};
    constexpr std::size_t at = offsetof(Header, cookie);
    const bool read =
        remote_.read(reinterpret_cast<std::byte*>(cookie.data()), header.address + at, sizeof(cookie));
    if (!read || cookie != header.cookie) return;
    out_.reads_memory.store(how, std::memory_order_release);
}

void ShmLink::begin(const Context& context, std::uint64_t length) {
    sending_ = &context;
    length_ = length;
    written_ = 0;
    released_ = 0;
    started_ = false;
    restaged_ = 0;
    changes_places_ = fits_places() && places_.has_some();
}

bool ShmLink::fits_places() const {
    return !same_process_ && length_ >= page_size && length_ <= sending_->placed_up_to;
}

std::size_t ShmLink::longest_piece() const {
    const std::uint64_t piece = round_up(length_ / sending_->pieces, page_size);
    const std::uint64_t most =
        std::min<std::uint64_t>(sending_->longest_piece, own_->geometry().staging_bytes);
    return std::min(std::max(piece, smallest_piece), most);
}

std::uint64_t ShmLink::acknowledged() {
    acknowledged_ = out_.acknowledged.load(std::memory_order_seq_cst);
    return acknowledged_;
}

bool ShmLink::has_line() {
    return line_ - acknowledged_ < lines_per_link || line_ - acknowledged() < lines_per_link;
}

bool ShmLink::has_finished(std::uint64_t line) { return acknowledged_ >= line || acknowledged() >= line; }

bool ShmLink::stages(const std::byte* data, std::size_t n) {
    if (length_ <= Line::inline_bytes) return false;
    if (same_process_) return length_ < direct_from_thread;
    if (length_ >= direct_from_shm && own_->in_heap(data, n)) return false;
    return !is_pulled(data, n);
}

bool ShmLink::is_pulled(const std::byte* data, std::size_t n) const {
    if (same_process_ || refused_) return false;
    const Reads how = in_.reads_memory.load(std::memory_order_acquire);
    const std::uint64_t from = how == Reads::slowly ? sending_->pulled_slowly_from : sending_->pulled_from;
    return how != Reads::never && length_ >= from && length_ < sending_->pulled_below &&
           !own_->in_heap(data, n);
}

std::size_t ShmLink::write(const std::byte* data, std::size_t n, Second second) {
    if (written_ < restaged_) return 0;
    const std::uint64_t before = line_;
    const std::size_t taken = put(data, n, second);
    if (line_ != before) wake_peers(std::array{this});
    return taken;
}

std::size_t ShmLink::put(const std::byte* data, std::size_t n, Second second) {
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
            copy_twice(Stores::cached, places_.at(number), second, data, n);
            announce(0, n, Staged::unsaid, number + 1);
            return n;
        }
        // What the peer sends at the same time comes in one, most likely.
        if (changes_places_ && !std::exchange(waited_, true)) return 0;
        std::byte* const slot = staging_for(n);
        if (slot == nullptr) return 0;
        const Staged staged = stage_(slot, data, n, theirs_->header().read_costs, true, second);
        announce(own_->offset_of(slot), n, staged);
        return n;
    }
    if (!has_line()) return 0;
    // No piece that ranks work on together lies in two of these.
    const std::size_t slot = own_->geometry().slot_bytes;
    n = std::min(n, std::max(direct_piece - direct_piece % slot, slot));
    data_ = data - written_;
    direct_.push_back({line_ + 1, written_ + n});
    announce(is_pulled(data, n) ? reinterpret_cast<std::uintptr_t>(data) | is_address : own_->offset_of(data),
             n);
    return n;
}

bool ShmLink::post(std::uint64_t tag, std::byte* place, std::uint64_t length) {
    if (same_process_ || wanted_ != nullptr || length < direct_from_shm || !own_->in_heap(place, length)) {
        return false;
    }
    wanted_ = place;
    out_.post.offset = own_->offset_of(place);
    out_.post.length = length;
    out_.post.tag.store(tag, std::memory_order_release);
    return true;
}

void ShmLink::withdraw() {
    wanted_ = nullptr;
    out_.post.tag.store(0, std::memory_order_release);
}

std::byte* ShmLink::posted(std::uint64_t tag, std::uint64_t length) const {
    if (in_.post.tag.load(std::memory_order_acquire) != tag || in_.post.length != length) return nullptr;
    std::byte* const place = theirs_->at(in_.post.offset);
    return theirs_->in_heap(place, length) ? place : nullptr;
}

std::size_t ShmLink::announce_posted(std::size_t n) {
    if (n == 0 || !has_line()) return 0;
    announce(where_posted, n);
    return n;
}

std::uint64_t ShmLink::announce(std::uint64_t offset, std::size_t n, Staged staged, std::uint32_t place) {
    Line& line = next_line();
    // Between threads an address is an address; it is told relative to our arena like any other.
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
    // Whole pages, since what begins with a page is copied fast to and from what does.
    const std::size_t used = std::min(round_up(n, page_size), room);
    const std::size_t in_turn = n < page_size ? 0 : sending_->staged_in_turn;
    std::uint64_t begin = passed_;
    const std::size_t at = begin % room;
    if (at + used > room || at >= std::max(in_turn, 2 * used)) begin += (room - at) % room;
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

void ShmLink::wake_peers(std::span<ShmLink* const> links) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (ShmLink* const link : links) link->wake_peer();
}

void ShmLink::wake_peer() {
    // Between what we have stored and what we look at here there is a full fence, as there is between the
    // peer's "set sleeping" and its "look once more": one of the two sees the other's store.
    Header& header = theirs_->header();
    const auto sleep = static_cast<Sleep>(header.sleeping.load(std::memory_order_seq_cst));
    if (sleep == Sleep::awake) return;
    header.doorbell.fetch_add(1, std::memory_order_release);
    if (sleep == Sleep::on_doorbell) {
        futex_wake(header.doorbell);
    } else {
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto n = ::write(theirs_->wake_fd(), &one, sizeof(one));
    }
}

std::uint64_t ShmLink::released() {
    if (!direct_.empty()) {
        const std::uint64_t finished = acknowledged();
        if (!refused_ && out_.refused.load(std::memory_order_acquire) >= direct_.front().line) {
            stage_refused();
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

void ShmLink::expect(const Context& context, std::uint64_t length) {
    expected_ = &context;
    expected_length_ = length;
    taken_ = 0;
    opened_ = false;
    refusing_ = false;
}

bool ShmLink::next_slice() {
    if (!slice_.empty() || remote_left_ > 0) return true;
    if (opened_ && taken_ == expected_length_) return false;
    Line& line = in_.lines[line_in_ % lines_per_link];
    const std::uint64_t tag = line.tag.load(std::memory_order_seq_cst);
    if (tag >> 32 != (line_in_ & 0xffffffff)) return false;
    if (static_cast<std::uint32_t>(tag) != expected_->fingerprint) throw_other_call(expected_->call);
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
    given_ = line.slice.place;
    if (given_ > 0) {
        const bool sound = !same_process_ && places_.may_come(given_ - 1) && n > 0 &&
                           n <= std::min(own_->geometry().staging_bytes, expected_length_ - taken_);
        if (!sound) throw_other_length();
        slice_ = {places_.at(given_ - 1), static_cast<std::size_t>(n)};
        return true;
    }
    if (offset == where_posted && wanted_ != nullptr && n > 0 && n <= expected_length_ - taken_) {
        slice_ = {wanted_ + taken_, static_cast<std::size_t>(n)};
        return true;
    }
    if (!same_process_ && offset != where_posted && (offset & is_address) != 0 && n > 0 &&
        n <= expected_length_ - taken_) {
        if (refusing_) {
            finish_line();
            return next_slice();
        }
        address_ = offset & ~is_address;
        remote_left_ = n;
        return true;
    }
    const std::size_t total = theirs_->geometry().total();
    const bool inside = same_process_ || (n <= total && offset <= total - n);
    if (!inside || n == 0 || n > expected_length_ - taken_) throw_other_length();
    slice_ = {theirs_->at(offset), static_cast<std::size_t>(n)};
    return true;
}

std::size_t ShmLink::read(std::byte* data, std::size_t n, Stores stores) {
    std::size_t done = 0;
    while (done < n && next_slice()) {
        std::size_t part = 0;
        if (slice_.empty()) {
            part = std::min<std::size_t>(n - done, remote_left_);
            if (expected_->helped && part == remote_left_ && part >= joint_from) {
                if (!pull_jointly(data + done)) {
                    if (joint_) return done;
                    continue;
                }
            } else if (!pull(data + done, part)) {
                continue;
            }
            taken_ += part;
            if (remote_left_ == 0) finish_line();
        } else {
            part = std::min(n - done, slice_.size());
            const std::uint64_t whole = in_.lines[line_in_ % lines_per_link].slice.length;
            own_->header().read_costs.time(staged_, whole, part, [&] {
                read_staged(staged_, stores, data + done, slice_.data(), part);
            });
            consume(part);
        }
        done += part;
    }
    return done;
}

std::span<const std::byte> ShmLink::peek(std::size_t) {
    if (next_slice() && slice_.empty()) {
        if (!pulled_slice_) pulled_slice_ = std::make_unique_for_overwrite<std::byte[]>(pulled_slice);
        const std::size_t n = std::min<std::size_t>(pulled_slice, remote_left_);
        if (pull(pulled_slice_.get(), n)) {
            slice_ = {pulled_slice_.get(), n};
        } else {
            next_slice();
        }
    }
    return slice_;
}

bool ShmLink::ready(std::size_t) { return next_slice() || (opened_ && taken_ == expected_length_); }

void ShmLink::consume(std::size_t n) {
    slice_ = slice_.subspan(n);
    taken_ += n;
    if (slice_.empty() && remote_left_ == 0 && in_line_) finish_line();
}

void ShmLink::abandon(bool shown) {
    end_joint();
    if (shown || !direct_.empty()) out_.abandoned.store(1, std::memory_order_seq_cst);
}

void ShmLink::ensure_valid(const Call& call) {
    // Whoever fails says so before its memory can be in other use.
    if (in_.abandoned.load(std::memory_order_acquire) != 0) throw_lost(call, "it gave the operation up");
}

void ShmLink::finish_line() {
    in_line_ = false;
    const bool quiet = expected_length_ <= Line::inline_bytes;
    if (!quiet) ensure_valid(expected_->call);
    if (given_ > 0) places_.take(given_ - 1);
    given_ = 0;
    const std::uint64_t finished = line_in_++;
    if (quiet && finished - told_ < quiet_lines) return;
    told_ = finished;
    in_.acknowledged.store(finished, std::memory_order_seq_cst);
    wake_peer();
}

bool ShmLink::received() {
    if (!opened_) next_slice();
    return opened_ && taken_ == expected_length_;
}

void ShmLink::throw_other_length() const {
    throw_desync(expected_->call, their_call(expected_->call), ", with a message of another length");
}

void ShmLink::throw_other_pieces() const {
    throw_desync(expected_->call, their_call(expected_->call), ", in pieces of another length");
}

Call ShmLink::their_call(const Call& mine) const {
    const std::optional<Call> same =
        mine.is_message() ? std::nullopt : theirs_->collective_call(mine.sequence);
    return same && *same != mine ? *same : theirs_->current_call();
}

void ShmLink::compare(const Call& mine) const {
    if (mine.is_message()) return;
    // Those who disagreed may both have gone on: a root that only sends waits for nobody.
    const std::uint64_t next = mine.sequence + 1;
    for (std::uint64_t s = next - std::min<std::uint64_t>(next, calls_told); s < next; ++s) {
        const std::optional<Call> ours = own_->collective_call(s);
        const std::optional<Call> theirs = theirs_->collective_call(s);
        if (ours && theirs && *ours != *theirs) throw_desync(*ours, *theirs);
    }
}

void ShmLink::throw_other_call(const Call& mine) const { throw_desync(mine, their_call(mine)); }

const char* ShmLink::lost() {
    if (lost_.load(std::memory_order_acquire)) return "its process ended or closed the communicator";
    if (theirs_->header().closed.load(std::memory_order_acquire) != 0) return "it closed the communicator";
    return nullptr;
}

std::optional<int> ShmLink::blamed() const {
    const auto first = static_cast<int>(theirs_->header().lost.load(std::memory_order_acquire)) - 1;
    return first < 0 || first == rank_ ? std::nullopt : std::optional(first);
}

// The header says the rest, to all peers at once.
void ShmLink::shut_down(std::optional<int>) { wake_peer(); }

}  // namespace collectives
