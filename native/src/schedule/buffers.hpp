// The memory that an operation works on: its input, its output and scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "link/lasting_memory.hpp"
#include "schedule/program.hpp"

namespace collectives {

class Buffers {
  public:
    // Use this memory of the caller until the next `begin`.
    void begin(const Operation& operation, std::byte* in, std::byte* out);
    // Free large scratch memory; smaller scratch memory is kept for the next operation.
    void end();

    std::byte* in() const { return places_[buffer_in]; }
    std::byte* out() const { return places_[buffer_out]; }
    std::byte* at(const Operation::Place& place) const {
        return places_[static_cast<std::size_t>(place.buffer)] + place.offset;
    }

  private:
    std::byte* scratch(std::uint64_t bytes);
    void free_scratch();

    std::vector<std::byte*> places_;
    std::unique_ptr<std::byte[]> scratch_;
    LastingBlock lasting_;  // the scratch memory, whose registrations are kept as long
    std::uint64_t scratch_size_ = 0;
};

}  // namespace collectives
