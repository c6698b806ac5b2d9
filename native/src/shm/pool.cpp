#include "shm/pool.hpp"

#include <algorithm>

#include "base/copy.hpp"

namespace collectives {

namespace {

// Bytes of a piece at least, if each rank has a core of its own.
constexpr std::size_t smallest_piece = 16 << 10;

// If so few ranks share cores that one core would be idle while the other core adds up a whole half, a half
// is divided into two pieces of at least `smallest_cut` bytes.
constexpr std::size_t cut_up_to = 4;
constexpr std::size_t smallest_cut = 64 << 10;

// Bytes that the last addition adds at a time, and copies out while they are in the first-level cache.
constexpr std::size_t added_at_once = 8 << 10;

// An accumulator's word: the piece's number, and the rank that has added to it last.
constexpr unsigned rank_bits = 16;
std::uint64_t added_by(std::uint64_t number, std::size_t rank) { return number << rank_bits | rank; }
std::uint64_t number_of(std::uint64_t word) { return word >> rank_bits; }
std::size_t rank_of(std::uint64_t word) { return word & ((std::uint64_t{1} << rank_bits) - 1); }

}  // namespace

Pool::Pool(int rank, std::vector<std::shared_ptr<Arena>> arenas, bool crowded, bool leaves_copies)
    : rank_(static_cast<std::size_t>(rank)),
      size_(arenas.size()),
      crowded_(crowded),
      leaves_copies_(leaves_copies),
      arenas_(std::move(arenas)),
      middle_(find_middle()),
      room_(arenas_[0]->geometry().staging_bytes) {
    const std::size_t memory = accumulators * room_;
    if (!crowded_) room_ = std::min(room_, short_accumulator);
    // Fewer if ranks share a core, because they would not fit into its cache.
    const std::size_t most = crowded_ ? accumulators / 2 : std::min(memory / room_, most_accumulators);
    for (std::size_t half = 0; half < parts_.size(); ++half) {
        parts_[half].arena = arenas_[first_of(half)].get();
        parts_[half].kept = std::clamp<std::size_t>(parts_[half].arena->header().short_accumulators, 1, most);
        parts_[half].position = (rank_ + size_ - first_of(half)) % size_;
        parts_[half].copied = leaves_copies_ && gets_copies(half);
    }
    const std::size_t mine = parts_[1].position < parts_[0].position ? 1 : 0;
    order_ = {mine, 1 - mine};
}

std::size_t Pool::find_middle() const {
    const std::size_t half = size_ / 2;
    for (std::size_t rank = std::max<std::size_t>(half, 1); rank < size_; ++rank) {
        if (home(rank) != home(rank - 1)) return rank;
    }
    return half;
}

bool Pool::gets_copies(std::size_t half) const {
    const std::int32_t first = home(first_of(half));
    const std::int32_t last = home(last_of(half));
    if (first < 0 || last < 0 || first == last || home(rank_) != last) return false;
    std::size_t there = 0;
    for (std::size_t rank = 0; rank < size_; ++rank) {
        if (home(rank) == last) {
            ++there;
        } else if (home(rank) != first) {
            return false;
        }
    }
    return there > 1;
}

void Pool::open(const std::byte* in, std::byte* out, std::size_t n, const Kernel& kernels, Stores stores) {
    in_ = in;
    out_ = out;
    kernel_ = kernels;
    stores_ = stores;
    bytes_ = n;
    half_ = std::min(round_up((n + 1) / 2, cache_line), n);
    if (!crowded_) {
        // Ranks with cores of their own work at the same time, each on another piece.
        piece_ = std::clamp(round_up(half_ / size_, cache_line), smallest_piece, short_accumulator);
    } else if (size_ <= cut_up_to) {
        piece_ = std::max(round_up((half_ + 1) / 2, cache_line), smallest_cut);
    } else {
        piece_ = half_;
    }
    piece_ = std::min({piece_, half_, room_});
    before_ += pieces_;  // those of the previous operation
    pieces_ = (half_ + piece_ - 1) / piece_;
    for (Part& part : parts_) part.added = part.got = 0;
}

std::atomic<std::uint64_t>& Pool::word(std::size_t half, std::uint64_t piece) const {
    return parts_[half].arena->pool_board().words[index(half, piece)].last;
}

std::byte* Pool::accumulator(std::size_t half, std::uint64_t piece) const {
    return parts_[half].arena->pool_memory() + index(half, piece) * room_;
}

std::byte* Pool::copy_of(std::size_t half, std::uint64_t piece) const {
    return arenas_[last_of(half)]->pool_copies() + index(half, piece) * room_;
}

std::size_t Pool::offset_of(std::size_t half, std::uint64_t piece) const {
    return std::min(half * half_ + static_cast<std::size_t>(piece) * piece_, bytes_);
}

std::size_t Pool::length_of(std::size_t half, std::uint64_t piece) const {
    const std::size_t end = half == 0 ? half_ : bytes_;
    return std::min(piece_, end - offset_of(half, piece));
}

bool Pool::has(std::size_t half, std::size_t rank, std::uint64_t number) const {
    return parts_[half].arena->pool_board().got[rank].load(std::memory_order_acquire) >= number;
}

bool Pool::is_free(std::size_t half, std::uint64_t piece) const {
    const std::uint64_t kept = parts_[half].kept;
    if (number(piece) <= kept) return true;
    for (std::size_t rank = 0; rank < size_; ++rank) {
        if (!has(half, rank, number(piece) - kept)) return false;
    }
    return true;
}

bool Pool::add(std::size_t half) {
    Part& part = parts_[half];
    const std::uint64_t piece = part.added;
    if (piece == pieces_) return false;
    std::byte* const sum = accumulator(half, piece);
    const std::byte* const own = in_ + offset_of(half, piece);
    const std::size_t n = length_of(half, piece);
    if (part.position == 0) {
        if (!is_free(half, piece)) return false;
        copy_bytes(sum, own, n);
    } else {
        const std::size_t previous = (rank_ + size_ - 1) % size_;
        if (word(half, piece).load(std::memory_order_acquire) != added_by(number(piece), previous)) {
            return false;
        }
        if (part.position + 1 == size_) {
            add_last(half, piece);
        } else {
            const std::array<const std::byte*, 2> operands{sum, own};
            kernel_.reduce(sum, operands.data(), operands.size(), n / kernel_.unit, 1.0);
        }
    }
    word(half, piece).store(added_by(number(piece), rank_), std::memory_order_release);
    ++part.added;
    return true;
}

void Pool::add_last(std::size_t half, std::uint64_t piece) {
    std::byte* const sum = accumulator(half, piece);
    const std::byte* const own = in_ + offset_of(half, piece);
    const std::size_t n = length_of(half, piece);
    for (std::size_t at = 0; at < n; at += added_at_once) {
        const std::size_t some = std::min(added_at_once, n - at);
        const std::array<const std::byte*, 2> operands{sum + at, own + at};
        kernel_.reduce(sum + at, operands.data(), operands.size(), some / kernel_.unit, kernel_.scale);
        copy_out(half, piece, at, some);
    }
    tell_got(half, piece);
}

bool Pool::get(std::size_t half) {
    Part& part = parts_[half];
    const std::uint64_t piece = part.got;
    if (piece == part.added) return false;
    if (word(half, piece).load(std::memory_order_acquire) != added_by(number(piece), last_of(half)))
        return false;
    copy_out(half, piece, 0, length_of(half, piece));
    tell_got(half, piece);
    return true;
}

void Pool::copy_out(std::size_t half, std::uint64_t piece, std::size_t from, std::size_t n) {
    const Part& part = parts_[half];
    const bool adds_last = part.position + 1 == size_;
    const std::byte* const sum = part.copied && !adds_last ? copy_of(half, piece) : accumulator(half, piece);
    const CopyFn copy = stores_ == Stores::streaming ? copy_streaming_on : copy_bytes;
    copy(out_ + offset_of(half, piece) + from, sum + from, n);
    if (part.copied && adds_last) copy_bytes(copy_of(half, piece) + from, sum + from, n);
}

void Pool::tell_got(std::size_t half, std::uint64_t piece) {
    parts_[half].arena->pool_board().got[rank_].store(number(piece), std::memory_order_release);
    ++parts_[half].got;
}

bool Pool::advance(std::vector<int>& waiting) {
    bool moved = false;
    for (const std::size_t half : order_) {
        bool added = false;
        while (add(half)) added = true;
        if (!added) continue;
        moved = true;
        if (parts_[half].position + 1 < size_) {
            waiting.push_back(static_cast<int>(after(rank_)));
        } else {
            for (std::size_t rank = 0; rank < size_; ++rank) waiting.push_back(static_cast<int>(rank));
        }
    }
    for (const std::size_t half : order_) {
        bool got = false;
        while (get(half)) got = true;
        if (!got) continue;
        moved = true;
        waiting.push_back(static_cast<int>(first_of(half)));
    }
    std::erase(waiting, static_cast<int>(rank_));
    if (stores_ == Stores::streaming && is_complete()) finish_streaming();
    return moved;
}

void Pool::awaited(std::vector<int>& ranks) const {
    for (std::size_t half = 0; half < parts_.size(); ++half) {
        const Part& part = parts_[half];
        if (part.got == pieces_) continue;
        // Check the oldest piece that this rank has not copied out.
        const std::uint64_t found = word(half, part.got).load(std::memory_order_acquire);
        if (number_of(found) == number(part.got)) {
            if (rank_of(found) != last_of(half)) ranks.push_back(static_cast<int>(after(rank_of(found))));
        } else if (is_free(half, part.got)) {
            ranks.push_back(static_cast<int>(first_of(half)));
        } else {
            for (std::size_t rank = 0; rank < size_; ++rank) {
                if (!has(half, rank, number(part.got) - part.kept)) ranks.push_back(static_cast<int>(rank));
            }
        }
    }
    std::erase(ranks, static_cast<int>(rank_));
}

}  // namespace collectives
