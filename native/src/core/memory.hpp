// What a communicator's shared memory takes.
#pragma once

#include <cstddef>

#include "shm/arena.hpp"

namespace collectives {

// Bytes of this rank's arena.
struct ArenaUse {
    std::size_t mapped = 0;   // reserved, for all but the heap
    std::size_t touched = 0;  // of these, in memory
    std::size_t staging = 0;  // of these, reserved for messages that are staged
    std::size_t heap = 0;     // arrays from `empty` that are in use
};

ArenaUse use_of(Arena& arena);

}  // namespace collectives
