// How a link of shared memory carries the messages of an operation: the protocol, and the size of pieces.
//
// Invariant: the choice depends on the operation's traffic, the geometry of the arena, and whether ranks
// outnumber cores. It changes the speed only.
#pragma once

#include <cstdint>

#include "link/link.hpp"
#include "shm/arena.hpp"

namespace collectives {

// Sizes, in bytes, of messages that are read from the sender's process by cross-memory attach (CMA).
struct Pulled {
    std::uint64_t from = ~std::uint64_t{0};
    std::uint64_t below = ~std::uint64_t{0};
};

struct Carriage {
    // Messages that are read by CMA, if this takes as long as a copy, and if it takes longer, because the
    // kernel looks up each page.
    Pulled pulled;
    Pulled pulled_slowly;
    // How staged messages are divided: into `pieces` pieces, so that the receiver can begin early, unless
    // they would be too short, and none longer than `longest_piece` bytes.
    std::uint32_t pieces = 1;
    std::uint64_t longest_piece = ~std::uint64_t{0};
    // Messages of up to this size may use the link's places, see Places.
    std::uint64_t placed_up_to = 0;
};

Carriage choose_carriage(const Traffic& traffic, const Geometry& geometry, bool oversubscribed);

// Chooses for one operation after the other, and keeps the choice while the traffic is the same.
class CarriageChoice {
  public:
    // Use this carriage from now on, whatever the traffic is.
    void fix(const Carriage& carriage) {
        carriage_ = carriage;
        is_fixed_ = true;
    }
    const Carriage& operator()(const Traffic& traffic, const Geometry& geometry, bool oversubscribed) {
        if (!is_fixed_ && (!is_known_ || traffic != traffic_)) {
            carriage_ = choose_carriage(traffic, geometry, oversubscribed);
            traffic_ = traffic;
            is_known_ = true;
        }
        return carriage_;
    }

  private:
    bool is_fixed_ = false;
    bool is_known_ = false;
    Traffic traffic_;
    Carriage carriage_;
};

}  // namespace collectives
