// A reduction that all ranks of a machine do together: whoever runs takes the next slice.
//
// Every rank would compute the same bits from the same operands, so it does not matter who does. Where ranks
// outnumber cores nobody waits for the rank whose part it would be. The message is worked on in pieces of a
// staging slot, numbered over all operations of the group in their order, the same on every rank.
//
// Invariant: a slice of piece k is taken by the one rank that changes its word, whose results then hold it;
// their memory is used for piece k + pieces_kept only when every rank has got piece k.
#pragma once

#include <span>
#include <vector>

#include "reduce/reduce.hpp"
#include "shm/arena.hpp"
#include "shm/staging.hpp"

namespace collectives {

class SharedReduction {
  public:
    // `arenas`: of all ranks, in their order, ours among them.
    SharedReduction(int rank, std::vector<std::shared_ptr<Arena>> arenas);

    std::size_t piece_bytes() const { return piece_bytes_; }

    // Take up piece `number`, whose n bytes of every rank lie at `operands`, to be reduced to `dst`.
    void open(std::uint32_t number, std::span<const std::byte* const> operands, std::byte* dst, std::size_t n,
              std::size_t unit);
    bool is_open() const { return open_; }
    // The operation was given up.
    void abandon() { open_ = false; }
    // Reduce what nobody else has taken; whether anything was.
    bool work(ReduceFn kernel, double scale);
    // Get what others have reduced meanwhile, whether all of it is there. Then the operands are not needed
    // any more by anybody, and the piece is closed. Error(desync) where memory holds what no rank can have
    // written.
    bool gather();
    // The ranks that `work` or `gather` wait for.
    void awaited(std::vector<int>& ranks) const;

  private:
    std::size_t slices() const { return (bytes_ + slice_ - 1) / slice_; }
    std::size_t length_of(std::size_t slice) const { return std::min(slice_, bytes_ - slice * slice_); }
    std::atomic<std::uint64_t>& word(std::size_t slice) const;
    // Results of piece `number` as that rank keeps them.
    std::byte* results(std::size_t rank) const;
    // It may still need the results that those of this piece would overwrite.
    bool is_behind(std::size_t rank) const;

    std::size_t rank_;
    std::vector<std::shared_ptr<Arena>> arenas_;
    std::size_t piece_bytes_;

    bool open_ = false;
    std::uint32_t number_ = 0;
    std::size_t bytes_ = 0;
    std::size_t slice_ = 0;  // bytes
    std::size_t unit_ = 1;
    std::byte* dst_ = nullptr;
    std::vector<const std::byte*> operands_;
    std::vector<const std::byte*> at_;  // kept to save allocations
    std::vector<bool> got_;             // by slice
    std::size_t missing_ = 0;
    std::size_t looked_ = 0;  // slices that are known to be taken
};

}  // namespace collectives
