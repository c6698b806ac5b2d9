#include "shm/shared_reduction.hpp"

#include <algorithm>

#include "base/copy.hpp"
#include "base/error.hpp"

namespace collectives {

namespace {

constexpr std::size_t smallest_slice = 4 << 10;
constexpr std::size_t largest_slice = 32 << 10;

// A slice's word: the piece's number, who has taken it, and whether it is reduced.
std::uint64_t taken_by(std::uint32_t number, std::size_t rank) {
    return std::uint64_t{number} << 32 | static_cast<std::uint64_t>(rank) << 1;
}
constexpr std::uint64_t reduced = 1;

std::uint32_t number_of(std::uint64_t word) { return static_cast<std::uint32_t>(word >> 32); }
std::size_t owner_of(std::uint64_t word) { return static_cast<std::size_t>((word & 0xffffffff) >> 1); }

}  // namespace

SharedReduction::SharedReduction(int rank, std::vector<std::shared_ptr<Arena>> arenas)
    : rank_(static_cast<std::size_t>(rank)),
      arenas_(std::move(arenas)),
      piece_bytes_(arenas_[0]->geometry().slot_bytes) {}

std::atomic<std::uint64_t>& SharedReduction::word(std::size_t slice) const {
    return arenas_[0]->board().slices[number_ % pieces_kept][slice];
}

std::byte* SharedReduction::results(std::size_t rank) const {
    return arenas_[rank]->results(number_ % pieces_kept);
}

void SharedReduction::open(std::uint32_t number, std::span<const std::byte* const> operands, std::byte* dst,
                           std::size_t n, std::size_t unit) {
    open_ = true;
    number_ = number;
    bytes_ = n;
    unit_ = unit;
    dst_ = dst;
    operands_.assign(operands.begin(), operands.end());
    const std::size_t share = std::clamp(n / arenas_.size(), smallest_slice, largest_slice);
    const std::size_t least = (n + most_slices - 1) / most_slices;
    slice_ = round_up(std::max(share, least), cache_line);
    got_.assign(slices(), false);
    missing_ = slices();
    looked_ = 0;
}

bool SharedReduction::is_behind(std::size_t rank) const {
    const std::uint32_t got = arenas_[0]->board().got[rank].load(std::memory_order_acquire);
    // Numbers wrap around, and it may be ahead of us, too.
    return static_cast<std::int32_t>(number_ - got) > static_cast<std::int32_t>(pieces_kept);
}

bool SharedReduction::work(ReduceFn kernel, double scale) {
    if (looked_ == slices()) return false;
    for (std::size_t rank = 0; rank < arenas_.size(); ++rank) {
        if (is_behind(rank)) return false;
    }
    bool worked = false;
    // Ranks that start at once start at different places.
    const std::size_t first = slices() * rank_ / arenas_.size();
    for (; looked_ < slices(); ++looked_) {
        const std::size_t slice = (first + looked_) % slices();
        std::uint64_t found = word(slice).load(std::memory_order_relaxed);
        if (number_of(found) == number_) continue;
        const std::uint64_t mine = taken_by(number_, rank_);
        if (!word(slice).compare_exchange_strong(found, mine, std::memory_order_acq_rel)) continue;
        const std::size_t at = slice * slice_;
        const std::size_t n = length_of(slice);
        at_.clear();
        for (const std::byte* operand : operands_) at_.push_back(operand + at);
        // Into our own memory first: others may still hold the lines of the staged results.
        kernel(dst_ + at, at_.data(), at_.size(), n / unit_, scale);
        copy_bytes(results(rank_) + at, dst_ + at, n);
        word(slice).store(mine | reduced, std::memory_order_release);
        got_[slice] = true;
        --missing_;
        worked = true;
    }
    return worked;
}

bool SharedReduction::gather() {
    if (looked_ < slices()) return false;
    for (std::size_t slice = 0; slice < slices() && missing_ > 0; ++slice) {
        if (got_[slice]) continue;
        const std::uint64_t found = word(slice).load(std::memory_order_acquire);
        if ((found & reduced) == 0) continue;
        const std::size_t owner = owner_of(found);
        if (number_of(found) != number_ || owner >= arenas_.size()) {
            throw Error(ErrorKind::desync,
                        "the ranks' shared memory holds what none of them can have written");
        }
        copy_bytes(dst_ + slice * slice_, results(owner) + slice * slice_, length_of(slice));
        got_[slice] = true;
        --missing_;
    }
    if (missing_ > 0) return false;
    arenas_[0]->board().got[rank_].store(number_, std::memory_order_release);
    open_ = false;
    return true;
}

void SharedReduction::awaited(std::vector<int>& ranks) const {
    if (looked_ < slices()) {
        for (std::size_t rank = 0; rank < arenas_.size(); ++rank) {
            if (is_behind(rank)) ranks.push_back(static_cast<int>(rank));
        }
        return;
    }
    for (std::size_t slice = 0; slice < slices(); ++slice) {
        const std::uint64_t found = word(slice).load(std::memory_order_acquire);
        if (!got_[slice] && (found & reduced) == 0) ranks.push_back(static_cast<int>(owner_of(found)));
    }
}

}  // namespace collectives
