// NumPy arrays that own their memory, as memory that lasts (link/lasting_memory.hpp): each is watched by a
// weak reference, whose callback runs before the array frees its memory.
//
// Invariant: everything here runs with the GIL. An array is watched at most once, whatever uses it.
#pragma once

#include <nanobind/nanobind.h>

#include "core/group.hpp"

namespace collectives {

// The group is about to work on that array, an ndarray or None. Without effect for a group that gains nothing
// from memory that lasts, and for short arrays. Memory that belongs to anything but NumPy's allocator is not
// watched: its owner may map it anew while the array lives.
void announce(Group& group, nanobind::handle array) noexcept;

}  // namespace collectives
