// A grant: the receiver of a long message tells its sender where to write it.
//
// Invariant: a grant is for one message, whose number and operation the sender compares before it writes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace collectives::verbs {

struct Grant {
    std::uint64_t address = 0;      // of the message's first byte; 0: the message has to go through the ring
    std::uint64_t end = 0;          // byte of the message up to which may be written so far
    std::uint64_t message = 0;      // bytes of the message
    std::uint32_t fingerprint = 0;  // of the operation
    std::uint32_t ordinal = 0;      // number of the message in its direction
    std::uint32_t key = 0;          // remote key of the destination
    std::uint32_t unused = 0;
};
static_assert(sizeof(Grant) == 40);

// Behind the ring, a rank has a place for each grant that may be under way.
constexpr std::size_t grants_bytes(std::size_t slots) { return slots * sizeof(Grant); }

}  // namespace collectives::verbs
