// An allreduce in memory that all ranks of a machine share, where what is added up stays in one place and the
// ranks come to it.
//
// The array is cut into two halves, a half into pieces. A piece is added up in an accumulator: the first rank
// copies its part there, each of the others adds its own, and all copy the result out. A rank reads its input
// once and writes its output once; what is in between stays in the caches. One half begins with rank 0, the
// other with the rank in the middle, so that where ranks outnumber cores, and neighbours share one, each core
// has work at once and an accumulator moves from core to core once. Reading what another core has written
// takes it out of that core's caches: so the rank that adds last copies the result out before anyone else.
//
// A processor gives a line that was written to the core that reads it next, which may write it then without
// asking; once both have read it they share it, and to write it takes five to twenty times as long (Zen 4).
// So where ranks share two cores, an accumulator is for the core on which it began, to read and to write
// again: the rank that adds last leaves a copy for the others on its own.
//
// Invariant: pieces are numbered over all operations of the group in their order, the same on every rank. An
// accumulator is written to only by the rank that its word names as the next one, and holds the next piece
// only when every rank has got the one before. Input is read before output is written, so they may be one.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "reduce/reduce.hpp"
#include "shm/arena.hpp"

namespace collectives {

class Pool {
  public:
    // `arenas`: of all ranks, in their order, ours among them. `crowded`: they outnumber the cores.
    Pool(int rank, std::vector<std::shared_ptr<Arena>> arenas, bool crowded, bool leaves_copies);

    // The most ranks that have enough to do where each has a core: each works on another accumulator.
    static constexpr std::size_t most_with_cores = 2 * accumulators;

    struct Kernel {
        ReduceFn reduce = nullptr;
        double scale = 1.0;  // of the last addition
        std::size_t unit = 1;
    };
    // Take up the next operation: n bytes, n > 0. `stores`: how results reach `out`.
    void open(const std::byte* in, std::byte* out, std::size_t n, const Kernel& kernels, Stores stores);
    // Do what can be done; whether anything was. `waiting`: the ranks that may sleep for it, each at least
    // once.
    bool advance(std::vector<int>& waiting);
    bool is_complete() const { return parts_[0].got == pieces_ && parts_[1].got == pieces_; }
    // The ranks without whose doing nothing moves.
    void awaited(std::vector<int>& ranks) const;

  private:
    struct Part {
        Arena* arena = nullptr;    // its accumulators
        std::uint64_t kept = 0;    // of which so many are used
        std::size_t position = 0;  // how many ranks come before this one
        bool copied = false;       // for ranks of this one's core, by the last of them
        std::uint64_t added = 0;   // pieces
        std::uint64_t got = 0;
    };

    std::int32_t home(std::size_t rank) const { return arenas_[rank]->presence().home(); }
    std::size_t find_middle() const;
    std::size_t first_of(std::size_t half) const { return half * middle_; }
    std::size_t after(std::size_t rank) const { return rank + 1 == size_ ? 0 : rank + 1; }
    std::size_t last_of(std::size_t half) const { return (first_of(half) + size_ - 1) % size_; }
    // Whether the ranks on the last one's core get their results from a copy, and this one is there.
    bool gets_copies(std::size_t half) const;
    // The number of a half's piece.
    std::uint64_t number(std::uint64_t piece) const { return before_ + piece + 1; }
    // Which accumulator is its.
    std::size_t index(std::size_t half, std::uint64_t piece) const {
        return number(piece) % parts_[half].kept;
    }
    std::atomic<std::uint64_t>& word(std::size_t half, std::uint64_t piece) const;
    std::byte* accumulator(std::size_t half, std::uint64_t piece) const;
    std::byte* copy_of(std::size_t half, std::uint64_t piece) const;
    std::size_t offset_of(std::size_t half, std::uint64_t piece) const;
    std::size_t length_of(std::size_t half, std::uint64_t piece) const;
    bool is_free(std::size_t half, std::uint64_t piece) const;
    bool has(std::size_t half, std::size_t rank, std::uint64_t number) const;

    bool add(std::size_t half);
    bool get(std::size_t half);
    void add_last(std::size_t half, std::uint64_t piece);
    // Of the sum, which is there, n bytes from that one on.
    void copy_out(std::size_t half, std::uint64_t piece, std::size_t from, std::size_t n);
    void tell_got(std::size_t half, std::uint64_t piece);

    std::size_t rank_;
    std::size_t size_;
    bool crowded_;
    bool leaves_copies_;
    std::vector<std::shared_ptr<Arena>> arenas_;
    std::size_t middle_;
    std::size_t room_;  // bytes of an accumulator
    std::array<Part, 2> parts_;
    std::array<std::size_t, 2> order_;  // this rank's half first

    const std::byte* in_ = nullptr;
    std::byte* out_ = nullptr;
    Kernel kernel_;
    Stores stores_ = Stores::cached;
    std::uint64_t before_ = 0;  // pieces of earlier operations
    std::uint64_t pieces_ = 0;  // of a half
    std::size_t bytes_ = 0;
    std::size_t half_ = 0;   // bytes
    std::size_t piece_ = 0;  // bytes
};

}  // namespace collectives
