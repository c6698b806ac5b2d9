#include "shm/board.hpp"

#include <algorithm>
#include <cstring>

#include "base/copy.hpp"

namespace collectives {

namespace {

// The number of consecutive operations for which a board has room, if each publishes n bytes.
std::size_t slots_of(std::size_t n) { return n > on_board ? large_slots : flat_slots; }

std::uint64_t tag_of(std::uint64_t number, std::uint32_t fingerprint) { return number << 32 | fingerprint; }

// The tag of arrivals: 16 bits of the operation's number, 16 bits with the number of ranks that have arrived,
// and the fingerprint. The tag of an older operation, at which all have arrived, may have the same 16 bits of
// the number.
std::uint64_t first_of(std::uint64_t number, std::uint32_t fingerprint) {
    return (number & 0xffff) << 48 | std::uint64_t{1} << 32 | fingerprint;
}
constexpr std::uint64_t one_more = std::uint64_t{1} << 32;
std::size_t count_of(std::uint64_t arrivals) { return arrivals >> 32 & 0xffff; }

}  // namespace

void MessageBoard::open(std::shared_ptr<Arena> arena) {
    board_ = &arena->flat_board();
    arena_ = std::move(arena);
}

bool MessageBoard::may_publish(std::uint64_t number, std::size_t n, std::vector<int>* late) {
    const std::size_t slots = slots_of(n);
    if (number <= done_by_all_ + slots) return true;
    const std::uint64_t oldest = number - slots;
    bool all = true;
    for (std::size_t rank = 0; rank < size_; ++rank) {
        if (rank == rank_ || has_reached(oldest + 1, rank)) continue;
        all = false;
        if (late == nullptr) return false;
        late->push_back(static_cast<int>(rank));
    }
    if (all) done_by_all_ = oldest;
    return all;
}

void MessageBoard::publish(std::uint64_t number, std::uint32_t fingerprint, const std::byte* data,
                           std::size_t n) {
    put(number, data, n);
    line(number, rank_).tag.store(tag_of(number, fingerprint), std::memory_order_release);
}

void MessageBoard::put(std::uint64_t number, const std::byte* data, std::size_t n) {
    if (n > on_board) {
        stage_(place(number, rank_, n), data, n, false);
    } else {
        copy_bytes(place(number, rank_, n), data, n);
    }
}

void MessageBoard::share_cores(std::span<const std::shared_ptr<Arena>> arenas) {
    std::vector<std::int32_t> keys;
    for (const std::shared_ptr<Arena>& arena : arenas) keys.push_back(arena->presence().home());
    if (std::find(keys.begin(), keys.end(), -1) != keys.end()) {
        for (std::size_t rank = 0; rank < size_; ++rank) keys[rank] = 2 * rank < size_ ? 0 : 1;
    }
    std::vector<std::int32_t> cores;
    for (const std::int32_t key : keys) {
        const auto place = std::find(cores.begin(), cores.end(), key);
        core_of_.push_back(static_cast<std::size_t>(place - cores.begin()));
        if (place == cores.end()) cores.push_back(key);
    }
    cores_ = cores.size();
    for (std::size_t rank = 0; rank < size_; ++rank) {
        if (core_of_[rank] == core_of_[rank_]) core_ranks_.push_back(rank);
    }
}

MessageBoard::Arrival MessageBoard::arrive(std::uint64_t number, std::uint32_t fingerprint,
                                           const std::byte* data, std::size_t n) {
    ++turn_;
    std::atomic<std::uint64_t>& word = arrivals(number, core_of_[rank_]).tag;
    const std::uint64_t first = first_of(number, fingerprint);
    const auto has_begun = [&](std::uint64_t found) {
        return found >> 48 == first >> 48 && count_of(found) < core_ranks_.size();
    };
    const auto next = [&](std::uint64_t found) { return has_begun(found) ? found + one_more : first; };
    const auto is_other = [&](std::uint64_t found) {
        return has_begun(found) && static_cast<std::uint32_t>(found) != fingerprint;
    };
    std::uint64_t found = word.load(std::memory_order_acquire);
    // The last rank to arrive need not publish its own data.
    const bool alone = count_of(next(found)) == core_ranks_.size();
    if (!alone) copy_bytes(place(number, rank_, n), data, n);  // the reader shares this core's caches
    do {
        if (is_other(found)) return Arrival::unexpected;
    } while (!word.compare_exchange_weak(found, next(found), std::memory_order_acq_rel));
    return count_of(next(found)) == core_ranks_.size() ? Arrival::last : Arrival::early;
}

void MessageBoard::publish_sum(std::uint64_t number, std::uint32_t fingerprint, std::size_t n) {
    const std::size_t core = core_of_[rank_];
    const auto tell = [&](FlatLine& line) {
        line.taken.store(rank_, std::memory_order_relaxed);
        line.tag.store(tag_of(number, fingerprint), std::memory_order_release);
    };
    if (cores_ == 2) {
        copy_bytes(given(core, n), place_of_sum(number, n), n);
        tell(given_line(core));
    }
    tell(sum_line(number, core));
}

bool MessageBoard::has_reached(std::uint64_t number, std::size_t rank) const {
    const auto found =
        static_cast<std::uint32_t>(line(number, rank).tag.load(std::memory_order_seq_cst) >> 32);
    return static_cast<std::int32_t>(found - static_cast<std::uint32_t>(number)) >= 0;
}

std::byte* MessageBoard::place_beside(std::uint64_t number, std::size_t rank, std::size_t n) const {
    // Two ranks exchange places each time.
    const std::size_t owner = size_ == 2 ? rank ^ (number / slots_of(n) & 1) : rank;
    if (n <= on_board) return arena_->flat_data() + (number % flat_slots * size_ + owner) * on_board;
    const Geometry& geometry = arena_->geometry();
    return arena_->flat_large() + (number % geometry.large_places() * size_ + owner) * geometry.slot_bytes;
}

}  // namespace collectives
