// The shared memory of a group, for tests that look into it.
#pragma once

#include "core/group.hpp"
#include "shm/memory.hpp"

namespace collectives::testing {

// Null where it has none, or is closed.
inline std::shared_ptr<Arena> arena_of(const Group& group) {
    const GroupMemory* const memory = group.commons().find<GroupMemory>();
    return memory == nullptr ? nullptr : memory->arena();
}

}  // namespace collectives::testing
