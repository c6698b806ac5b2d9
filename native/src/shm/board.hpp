// A board, in one rank's memory, for short operations in which all ranks, or one rank, publish data once. The
// other ranks read the data there.
//
// With a board a rank touches a page or two, instead of several pages of each peer. This matters for ranks
// that have little time on a core, and find its caches cold.
//
// Reading data that another core has written moves its cache lines out of that core's caches. So if data does
// not fit into a line, two ranks exchange places each time: each writes where it has read before. With more
// ranks, a place that was read is in the caches of all of them, and writing there is slow. So they use more
// places in turn than fit into their caches.
//
// Ranks that share cores may first sum the published data for each core. The last rank of a core that arrives
// adds up the data of that core's ranks, and all ranks read these sums. So each core reads the data of
// another core once, and not once for each of its ranks. Two cores give each other their sums in places of
// their own, which are exchanged each time, too.
//
// Invariant: operations on a board are numbered, the same on every rank, and run in the order of their
// numbers. Published data stays until all ranks have finished the operation. A rank that has a line in an
// operation has finished all operations before. So the operation `flat_slots` later (`large_slots` later for
// long data) may overwrite an operation when all ranks have a line in the next one. A rank that publishes
// nothing stores its line when it has read what it needs. Memory of one board has no data of another board,
// whose operations may be ahead.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "shm/arena.hpp"
#include "shm/staging.hpp"

namespace collectives {

class MessageBoard {
  public:
    MessageBoard(std::size_t rank, std::size_t size) : rank_(rank), size_(size) {}
    // Use the board in this arena, its owner's; called when the arena is mapped.
    void open(std::shared_ptr<Arena> arena);
    bool is_open() const { return arena_ != nullptr; }

    // The number of the next operation, from 1 on.
    std::uint64_t next() { return ++count_; }

    // Whether this rank may publish n bytes in that operation; if not, the ranks that must advance first are
    // stored in `late`.
    bool may_publish(std::uint64_t number, std::size_t n, std::vector<int>* late = nullptr);
    void publish(std::uint64_t number, std::uint32_t fingerprint, const std::byte* data, std::size_t n);
    // Whether that rank has published; if so, stores the fingerprint of its line.
    bool has_published(std::uint64_t number, std::size_t rank, std::uint32_t& fingerprint) const {
        return has_published(number, line(number, rank), fingerprint);
    }
    static bool has_published(std::uint64_t number, const FlatLine& line, std::uint32_t& fingerprint) {
        const std::uint64_t tag = line.tag.load(std::memory_order_seq_cst);
        fingerprint = static_cast<std::uint32_t>(tag);
        return tag >> 32 == (number & 0xffffffff);
    }
    // All ranks' lines in that operation.
    const FlatLine* lines(std::uint64_t number) const { return &line(number, 0); }
    // What it has published, n bytes.
    const std::byte* published(std::uint64_t number, std::size_t rank, std::size_t n) const {
        return place(number, rank, n);
    }
    // All ranks have published in that operation.
    void all_published(std::uint64_t number) { done_by_all_ = number - 1; }

    // --- sums for each core
    // Called once, before the functions below. The arenas of the ranks tell their home cores. If a rank has
    // no home core, each half of the ranks counts as one core.
    void share_cores(std::span<const std::shared_ptr<Arena>> arenas);
    std::size_t cores() const { return cores_; }
    std::size_t core_of(std::size_t rank) const { return core_of_[rank]; }
    // The ranks of this rank's core, this rank included, ascending.
    std::span<const std::size_t> core_ranks() const { return core_ranks_; }

    enum class Arrival : std::uint8_t {
        early,      // other ranks of this core have yet to arrive; the last one adds up the data
        last,       // this rank has to add up the data of its core's ranks, and publish the sum
        unexpected  // some ranks of this core are in another operation
    };
    Arrival arrive(std::uint64_t number, std::uint32_t fingerprint, const std::byte* data, std::size_t n);
    // The memory in which the last rank adds up n bytes, before it publishes them.
    std::byte* place_of_sum(std::uint64_t number, std::size_t n) const {
        return place_of_sum(number, core_of_[rank_], rank_, n);
    }
    void publish_sum(std::uint64_t number, std::uint32_t fingerprint, std::size_t n);
    // Whether that core's sum is there; if so, stores its fingerprint.
    bool has_sum(std::uint64_t number, std::size_t core, std::uint32_t& fingerprint) const {
        return has_published(number, line_of_sum(number, core), fingerprint);
    }
    // If the sum is there: the rank that has added it up, and the sum, n bytes.
    std::size_t adder(std::uint64_t number, std::size_t core) const {
        return static_cast<std::size_t>(line_of_sum(number, core).taken.load(std::memory_order_relaxed));
    }
    const std::byte* sum(std::uint64_t number, std::size_t core, std::size_t n) const {
        return is_given(core) ? given(core, n) : place_of_sum(number, core, adder(number, core), n);
    }

    std::atomic<std::uint32_t>& sleepers() const { return board_->sleepers; }

  private:
    bool has_reached(std::uint64_t number, std::size_t rank) const;
    FlatLine& line(std::uint64_t number, std::size_t rank, std::size_t kind = 0) const {
        return board_->lines[(number % flat_slots * flat_lines_per_rank + kind) * size_ + rank];
    }
    FlatLine& sum_line(std::uint64_t number, std::size_t core) const { return line(number, core, 1); }
    FlatLine& arrivals(std::uint64_t number, std::size_t core) const { return line(number, core, 2); }
    std::byte* place_of_sum(std::uint64_t number, std::size_t core, std::size_t adder, std::size_t n) const {
        return n <= FlatLine::inline_bytes ? sum_line(number, core).data.data()
                                           : place_beside(number, adder, n);
    }
    // Whether this rank reads that core's sum in the place in which one core gives it to the other.
    bool is_given(std::size_t core) const { return cores_ == 2 && core != core_of_[rank_]; }
    std::size_t index_of_given(std::size_t core) const { return (core + turn_) % 2; }
    FlatLine& given_line(std::size_t core) const { return board_->given[index_of_given(core)]; }
    std::byte* given(std::size_t core, std::size_t n) const {
        return n <= FlatLine::inline_bytes
                   ? given_line(core).data.data()
                   : arena_->flat_given() + index_of_given(core) * arena_->geometry().given_bytes();
    }
    const FlatLine& line_of_sum(std::uint64_t number, std::size_t core) const {
        return is_given(core) ? given_line(core) : sum_line(number, core);
    }
    void put(std::uint64_t number, const std::byte* data, std::size_t n);
    std::byte* place(std::uint64_t number, std::size_t rank, std::size_t n) const {
        return n <= FlatLine::inline_bytes ? line(number, rank).data.data() : place_beside(number, rank, n);
    }
    std::byte* place_beside(std::uint64_t number, std::size_t rank, std::size_t n) const;

    std::size_t rank_;
    std::size_t size_;
    std::shared_ptr<Arena> arena_;
    FlatBoard* board_ = nullptr;
    StagingCopy stage_;  // for large data
    std::uint64_t count_ = 0;
    std::uint64_t done_by_all_ = 0;  // last operation that all ranks are known to have finished
    std::uint64_t turn_ = 0;         // number of operations with sums for each core
    std::size_t cores_ = 0;
    std::vector<std::size_t> core_of_;  // by rank
    std::vector<std::size_t> core_ranks_;
};

}  // namespace collectives
