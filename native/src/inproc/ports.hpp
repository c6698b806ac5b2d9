// Where threads of one process find each other's arenas.
//
// Invariant: an address is valid from `open` to `close`; who found an arena keeps it as long as needed.
#pragma once

#include <memory>
#include <string>

#include "shm/arena.hpp"

namespace collectives::ports {

// A new address for this arena, unique in this process.
std::string open(std::shared_ptr<Arena> arena);
void close(const std::string& address);
// Null if nobody is there (any more).
std::shared_ptr<Arena> find(const std::string& address);

}  // namespace collectives::ports
