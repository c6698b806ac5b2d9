// What this process's resource limits leave for shared memory (setrlimit, the shell's ulimit).
//
// Invariant: this is checked before anything is created. So a rank without room can tell its peers in time,
// and no limit is exceeded, for which the kernel would send a signal (SIGXFSZ).
#pragma once

#include <optional>
#include <string>

#include "shm/arena.hpp"

namespace collectives {

// Why arenas of that geometry without a heap, one for each rank of the host, do not fit, naming the limit.
std::optional<std::string> why_no_room(const Geometry& geometry);

// The size of the heap to reserve: as large as the machine's memory, or less if a limit asks for it. It takes
// no memory before it is used.
std::size_t heap_reserve(const Geometry& geometry);

}  // namespace collectives
