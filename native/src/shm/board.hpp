// Short operations in which every rank publishes something once, or one rank does, on one board in one rank's
// memory. The ranks that want it read it there.
//
// A rank that has little time on a core, and finds its caches cold, touches a page or two instead of several
// of each peer.
//
// Reading what another core has written takes it out of that core's caches. So two ranks change places each
// time, for what does not fit into a line: each writes where it has read. Among more ranks everybody holds
// what it has read, and writing there takes it from each: they use more places in turn than their caches
// hold.
//
// Ranks that share cores may add up core by core what all ranks publish. The last rank to come on a core adds
// up what the ranks of its core have published, and all ranks read these sums. So each core reads what
// another one has written once, not once for each of its ranks. Of two cores each gives the other one its sum
// in a place of its own, and these places change hands, too.
//
// Invariant: operations on a board have numbers, the same on every rank, and are done in their order. What is
// published in one stays until all have done it. A rank that has a line in an operation has done all before
// it, so the operation `flat_slots` later (`large_slots` where it is long) may overwrite it once all ranks
// have a line in the one after it. A rank that publishes nothing stores its line when it has read what it
// wants. Nothing that is published on one board lies in memory of another, whose operations may be ahead.
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
    // Where it is, once its owner's memory is there.
    void open(std::shared_ptr<Arena> arena);
    bool is_open() const { return arena_ != nullptr; }

    // The next operation's number. From 1 on.
    std::uint64_t next() { return ++count_; }

    // Whether this rank may publish n bytes in that operation; if not, `late` gets those that must go on
    // first.
    bool may_publish(std::uint64_t number, std::size_t n, std::vector<int>* late = nullptr);
    void publish(std::uint64_t number, std::uint32_t fingerprint, const std::byte* data, std::size_t n);
    // Whether that rank has; its line's fingerprint then.
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
    // All ranks have.
    void all_published(std::uint64_t number) { done_by_all_ = number - 1; }

    // --- core by core
    // Once, before what follows, with the memory of each rank, which says what core it shares. Where one of
    // them does not know, the two halves of the ranks count as such.
    void share_cores(std::span<const std::shared_ptr<Arena>> arenas);
    std::size_t cores() const { return cores_; }
    std::size_t core_of(std::size_t rank) const { return core_of_[rank]; }
    // The ranks of this one's core, itself too, ascending.
    std::span<const std::size_t> core_ranks() const { return core_ranks_; }

    enum class Arrival : std::uint8_t {
        early,      // what this rank publishes is there for the last rank of its core
        last,       // it has to add up what its core's ranks have published, and publish the sum
        unexpected  // some of them are in another operation
    };
    Arrival arrive(std::uint64_t number, std::uint32_t fingerprint, const std::byte* data, std::size_t n);
    // Where the last one adds up n bytes; then it publishes them.
    std::byte* place_of_sum(std::uint64_t number, std::size_t n) const {
        return place_of_sum(number, core_of_[rank_], rank_, n);
    }
    void publish_sum(std::uint64_t number, std::uint32_t fingerprint, std::size_t n);
    // Whether that core's is there; its fingerprint then.
    bool has_sum(std::uint64_t number, std::size_t core, std::uint32_t& fingerprint) const {
        return has_published(number, line_of_sum(number, core), fingerprint);
    }
    // Once it is there, who has added it up, and the sum, n bytes.
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
    // Whether this rank reads that core's sum where it is given.
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
    StagingCopy stage_;  // of what is large
    std::uint64_t count_ = 0;
    std::uint64_t done_by_all_ = 0;  // as far as is known
    std::uint64_t turn_ = 0;         // of operations core by core, so many
    std::size_t cores_ = 0;
    std::vector<std::size_t> core_of_;  // by rank
    std::vector<std::size_t> core_ranks_;
};

}  // namespace collectives
