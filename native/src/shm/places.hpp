// Places of a link in shared memory that change hands.
//
// Reading what another core has written takes it out of that core's caches, and writing it again takes it
// back. So a link has places besides its staging slots, as many in either arena, each of which belongs to one
// side: who sends a message in one gives it away, and who has read it there may send the next one in it.
// Between two who send to each other, each then writes only where it has just read.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "shm/arena.hpp"

namespace collectives {

// One side of them. Its own are known to no one else: a line tells which one it gives away.
class Places {
  public:
    Places(Arena& own, int rank, Arena& theirs, int peer);

    // Both sides know a place by the same number.
    std::byte* at(std::uint32_t number) const { return at_[number]; }

    bool has_some() const { return !ours_.empty(); }
    // The one that we have read last; it is the peer's from now on.
    std::uint32_t give();
    // Whether the peer may have given it to us.
    bool may_come(std::uint32_t number) const;
    // We have read what the peer has sent in it.
    void take(std::uint32_t number) { ours_.push_back(number); }

  private:
    std::array<std::byte*, 2 * places_per_link> at_{};
    std::vector<std::uint32_t> ours_;
};

}  // namespace collectives
