// The reductions of one operation that ranks share out, see SharedReduction: their pieces, one after the
// other.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "shm/colocated.hpp"
#include "shm/shared_reduction.hpp"

namespace collectives {

class SharedSums {
  public:
    explicit SharedSums(Colocated& colocated) : colocated_(colocated) {}

    // Another operation begins. The request must stay until its last piece is there.
    void begin(const Request& request);
    // It has a reduction of so many bytes to share. All ranks number its pieces alike.
    void add(std::uint64_t bytes);

    bool is_open() const { return shared_ && shared_->is_open(); }
    std::size_t piece_bytes() const { return colocated_.arena->geometry().slot_bytes; }
    // Take up the next piece, n bytes of all operands.
    void open(std::span<const std::byte* const> operands, std::byte* dst, std::size_t n);
    // Do a part of the piece that is open, and get the others' parts; whether all of it is there, and closed.
    bool work(const Operation::Task& step, ReduceFn kernel, double scale);
    void awaited(std::vector<int>& ranks) const { shared_->awaited(ranks); }

  private:
    Colocated& colocated_;
    const Request* request_ = nullptr;
    std::unique_ptr<SharedReduction> shared_;
    std::uint32_t piece_ = 0;  // the next one's number
};

}  // namespace collectives
