// A copy that two processes make together: the receiver of what lies in the sender's process from the front,
// by reading it, the sender from the back, by writing it, until they meet.
//
// Invariant: each chunk is taken once; the receiver has all of it when all are taken and the sender has
// written what it took. Who takes nothing need not be there: the other one does everything.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace collectives {

class JointCopy {
  public:
    // In memory that both share; one copy after the other.
    struct Shared {
        std::atomic<std::uint64_t> taken;    // which copy, and how many chunks from the back and the front
        std::atomic<std::uint64_t> place;    // where it goes to, in the receiver's process,
        std::atomic<std::int32_t> grant;     // and by which id, see WriteGrant
        std::atomic<std::uint64_t> written;  // which copy, and how many chunks from the back are there
    };
    // Bytes [from, from + n) of the copy.
    struct Part {
        std::size_t from = 0;
        std::size_t n = 0;
    };

    // The copy of that number, of n bytes.
    JointCopy(Shared& shared, std::uint64_t number, std::size_t n);

    // --- the receiver
    void open(std::uint64_t place, std::int32_t grant);
    // The next part to read; of 0 bytes if none is left.
    Part take_front();
    // Whether nothing is left, and what the sender has taken is there.
    bool is_complete() const;
    // From now on nobody takes anything; how many chunks the sender has taken.
    std::uint64_t close();
    // Whether so many of these are there, or, after `close`, given up: the sender writes no more of them.
    bool is_written(std::uint64_t chunks) const;

    // --- the sender
    // The next part to write, to `place`; of 0 bytes if none is left or the copy is not open.
    Part take_back();
    std::uint64_t place() const { return shared_.place.load(std::memory_order_relaxed); }
    std::int32_t grant() const { return shared_.grant.load(std::memory_order_relaxed); }
    void tell_written(const Part& part);
    // It can't write that one.
    void give_back(const Part& part);

  private:
    std::uint64_t chunks() const { return (n_ + chunk_ - 1) / chunk_; }
    std::uint64_t chunks_in(const Part& part) const { return (part.n + chunk_ - 1) / chunk_; }
    Part part(std::uint64_t first, std::uint64_t last) const;
    // Take half of what is left, at least a chunk, as `unit` counts it: how many, and the word `before` that.
    std::uint64_t take(std::uint64_t unit, std::uint64_t& before);
    std::uint64_t left(std::uint64_t word) const;

    Shared& shared_;
    std::uint64_t number_;  // in its place in the words
    std::size_t n_;
    std::size_t chunk_;
};

}  // namespace collectives
