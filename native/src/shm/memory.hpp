// The arena of one rank in one communicator, for all parts that go through shared memory.
//
// Invariant: there is one arena a communicator; peers in other processes can map it if the first who asked
// for it wanted that.
#pragma once

#include <memory>

#include "link/transport.hpp"
#include "shm/arena.hpp"

namespace collectives {

struct GroupMemory {
    std::shared_ptr<Arena> arena;
};

// Of a group of that size, but for the heap; `segment` as in Setup.
Geometry geometry_for(int size, std::size_t segment);

// The memory of the communicator, made where there is none. `across_processes`: peers in other processes have
// to map it; Error(invalid) where it was made for threads.
GroupMemory& memory_of(const Setup& setup, bool across_processes);

}  // namespace collectives
