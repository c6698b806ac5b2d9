// What a rank tells the leader about its arrays.
//
// Invariant: the driver is asked for a handle once for each allocation, and its descriptor is sent once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "leader/board.hpp"
#include "leader/meeting.hpp"

namespace collectives::leader {

class Exports {
  public:
    // `here`: the leader is in this process, so that addresses are enough.
    Exports(int device, bool here) : device_(device), here_(here) {}

    // The place of an array that is there. Its route is `none` if its memory cannot be exported.
    Place place_of(cuda::Pointer address, std::size_t bytes, const Meeting& meeting);

  private:
    int device_;
    bool here_;
    std::unordered_map<std::uint64_t, cuda::Exported> known_;  // by buffer
};

}  // namespace collectives::leader
