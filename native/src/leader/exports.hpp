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

// Where the leader is, seen from a rank: in another process, or in this one, with the same device or with
// another one that reaches this rank's device.
enum class Leader { elsewhere, on_this_device, on_a_peer };

class Exports {
  public:
    Exports(int device, Leader leader) : device_(device), leader_(leader) {}

    // The place of an array that is there. Its route is `none` if the leader cannot use its memory.
    Place place_of(cuda::Pointer address, std::size_t bytes, const Meeting& meeting);

  private:
    // Whether the leader, which is in this process, reaches that memory by its address.
    bool is_reached(cuda::Pointer address, std::size_t bytes) const;

    int device_;
    Leader leader_;
    std::unordered_map<std::uint64_t, cuda::Exported> known_;  // by buffer
};

}  // namespace collectives::leader
