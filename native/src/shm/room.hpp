// Whether this process's resource limits (setrlimit, the shell's ulimit) leave room for shared memory.
//
// Invariant: limits are checked before anything is created. So a rank without room can tell its peers in
// time, and the kernel sends no signal (SIGXFSZ) for an exceeded limit.
#pragma once

#include <optional>
#include <string>

#include "shm/arena.hpp"

namespace collectives {

// The reason, with the limit, why arenas of that geometry without heaps, one for each rank of the host, do
// not fit.
std::optional<std::string> why_no_room(const Geometry& geometry);

// Bytes to reserve for the heap: as many as the machine has memory, or fewer if a limit requires it. The heap
// takes no memory before it is used.
std::size_t heap_reserve(const Geometry& geometry);

}  // namespace collectives
