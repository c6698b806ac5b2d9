// The pool: an allreduce in memory that all ranks of a machine share, to which all ranks add in turn.
//
// The array is divided into two halves, and a half into pieces. A piece is summed in an accumulator: the
// first rank copies its part there, each other rank adds its own part, and all ranks copy the sum out. A rank
// reads its input once and writes its output once; the sums stay in the caches. One half begins with rank 0,
// the other half with the rank in the middle. So if ranks outnumber cores, and neighbours share a core, each
// core has work from the beginning, and an accumulator moves from core to core only once. Reading data that
// another core has written moves it out of that core's caches, so the rank that adds last copies the sum out
// first.
//
// On Zen 4, a core that reads a line which another core has written may also write it without a message to
// the other core. Once both cores have read the line, they share it, and a write takes five to twenty times
// as long. So if ranks share two cores, the ranks of only one core read the accumulator and write it again:
// the rank that adds last leaves a copy of the sum for the other ranks on its own core.
//
// Invariant: pieces are numbered over all operations of the group in their order, the same on every rank.
// Only the rank that the accumulator's word names as the next one writes to it, and it gets a new piece only
// when every rank has copied out the previous one. Input is read before output is written, so both may be the
// same array.
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
    // `arenas`: those of all ranks, by rank. `crowded`: ranks outnumber the cores.
    Pool(int rank, std::vector<std::shared_ptr<Arena>> arenas, bool crowded, bool leaves_copies);

    // The largest number of ranks that use the pool if each has a core: each works on another accumulator.
    static constexpr std::size_t most_with_cores = 2 * accumulators;

    struct Kernel {
        ReduceFn reduce = nullptr;
        double scale = 1.0;  // factor for the last addition
        std::size_t unit = 1;
    };
    // Start the next operation, on n > 0 bytes. `stores`: how results are stored to `out`.
    void open(const std::byte* in, std::byte* out, std::size_t n, const Kernel& kernels, Stores stores);
    // Do as much as possible; returns whether anything was done. Adds to `waiting` the ranks that may sleep
    // until this was done, each at least once.
    bool advance(std::vector<int>& waiting);
    bool is_complete() const { return parts_[0].got == pieces_ && parts_[1].got == pieces_; }
    // Adds the ranks for which this rank waits.
    void awaited(std::vector<int>& ranks) const;

  private:
    struct Part {
        Arena* arena = nullptr;    // has the accumulators of this half
        std::uint64_t kept = 0;    // the number of accumulators in use
        std::size_t position = 0;  // the number of ranks that add before this rank
        bool copied = false;       // ranks of this rank's core get results from a copy
        std::uint64_t added = 0;   // pieces
        std::uint64_t got = 0;
    };

    std::int32_t home(std::size_t rank) const { return arenas_[rank]->presence().home(); }
    std::size_t find_middle() const;
    std::size_t first_of(std::size_t half) const { return half * middle_; }
    std::size_t after(std::size_t rank) const { return rank + 1 == size_ ? 0 : rank + 1; }
    std::size_t last_of(std::size_t half) const { return (first_of(half) + size_ - 1) % size_; }
    // Whether this rank is on the core of the rank that adds last, and gets results from a copy.
    bool gets_copies(std::size_t half) const;
    // The number, over all operations, of a piece of this operation.
    std::uint64_t number(std::uint64_t piece) const { return before_ + piece + 1; }
    // The index of the piece's accumulator.
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
    // Copy n bytes of a complete sum to `out`, beginning at byte `from`.
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
    std::array<std::size_t, 2> order_;  // the halves, in the order in which this rank works on them

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
