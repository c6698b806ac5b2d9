// Staging memory of a link that changes its owner with each message.
//
// Reading what another core has written moves the lines out of that core's caches, and writing there again
// moves them back. So a link has places besides its staging memory, as many in either arena, each owned by
// one side. A sender passes a place to the receiver with the message in it, and the receiver may send its
// next message there. Two ranks that send to each other then write only where they have just read.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "shm/arena.hpp"

namespace collectives {

// The places that this side owns. The peer learns of one from the line that passes it on.
class Places {
  public:
    Places(Arena& own, int rank, Arena& theirs, int peer);

    // Both sides know a place by the same number.
    std::byte* at(std::uint32_t number) const { return at_[number]; }

    bool has_some() const { return !ours_.empty(); }
    // The place that was read last; the peer owns it from now on.
    std::uint32_t give();
    // Whether the peer may own it, and so may pass it on.
    bool may_come(std::uint32_t number) const;
    // This side has read what the peer has sent in it, and owns it now.
    void own(std::uint32_t number) { ours_.push_back(number); }

  private:
    std::array<std::byte*, 2 * places_per_link> at_{};
    std::vector<std::uint32_t> ours_;
};

}  // namespace collectives
