// Places: staging memory of a link whose owner changes with each message.
//
// Reading data that another core has written moves the cache lines out of that core's caches, and writing
// there again moves them back. So besides its staging memory a link has places, as many in each of the two
// arenas, each owned by one side. A sender gives a place to the receiver together with the message in it, and
// the receiver may send its next message there. Two ranks that send to each other then write only where they
// have just read.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "shm/arena.hpp"

namespace collectives {

// The places that this side owns. The line that announces a message tells the peer which place it gets.
class Places {
  public:
    Places(Arena& own, int rank, Arena& theirs, int peer);

    // Both sides know a place by the same number.
    std::byte* at(std::uint32_t number) const { return at_[number]; }

    bool has_some() const { return !ours_.empty(); }
    // Gives away the place that this side has read last: returns its number; the peer owns it from now on.
    std::uint32_t give();
    // Whether the peer may own that place, and so may give it to this side.
    bool may_come(std::uint32_t number) const;
    // This side has read the peer's message in that place, and owns the place now.
    void own(std::uint32_t number) { ours_.push_back(number); }

  private:
    std::array<std::byte*, 2 * places_per_link> at_{};
    std::vector<std::uint32_t> ours_;
};

}  // namespace collectives
