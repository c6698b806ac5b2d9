// What this process's resource limits leave for shared memory (setrlimit, the shell's ulimit).
//
// Invariant: asked before anything is made, so that ranks which have no room say so to the others before
// these count on it, and so that no limit is exceeded, for which the kernel sends a signal (SIGXFSZ).
#pragma once

#include <optional>
#include <string>

#include "shm/arena.hpp"

namespace collectives {

// Why arenas of that geometry without a heap, one for each rank of the host, do not fit, naming the limit.
std::optional<std::string> why_no_room(const Geometry& geometry);

// The heap to reserve besides: as large as the machine's memory, less where a limit is; of no memory before
// it is used.
std::size_t heap_reserve(const Geometry& geometry);

}  // namespace collectives
