#include "flat.hpp"

#include "copy.hpp"

namespace collectives {

namespace {

std::uint64_t tag_of(std::uint64_t number, std::uint32_t fingerprint) { return number << 32 | fingerprint; }

}  // namespace

void Flat::open(std::shared_ptr<Arena> arena) {
    board_ = &arena->flat_board();
    data_ = arena->flat_data();
    arena_ = std::move(arena);
}

bool Flat::may_say(std::uint64_t number, std::size_t slots, std::vector<int>* late) {
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

void Flat::say(std::uint64_t number, std::uint32_t fingerprint, const std::byte* data, std::size_t n) {
    copy_bytes(place(number, rank_, n), data, n);
    line(number, rank_).tag.store(tag_of(number, fingerprint), std::memory_order_release);
}

bool Flat::has_reached(std::uint64_t number, std::size_t rank) const {
    const auto found =
        static_cast<std::uint32_t>(line(number, rank).tag.load(std::memory_order_seq_cst) >> 32);
    return static_cast<std::int32_t>(found - static_cast<std::uint32_t>(number)) >= 0;
}

bool Flat::has_said(std::uint64_t number, std::size_t rank, std::uint32_t& fingerprint) const {
    const std::uint64_t tag = line(number, rank).tag.load(std::memory_order_seq_cst);
    fingerprint = static_cast<std::uint32_t>(tag);
    return tag >> 32 == (number & 0xffffffff);
}

std::byte* Flat::place(std::uint64_t number, std::size_t rank, std::size_t n) const {
    return n <= FlatLine::inline_bytes ? line(number, rank).data.data()
                                       : data_ + index(number, rank) * on_board;
}

}  // namespace collectives
