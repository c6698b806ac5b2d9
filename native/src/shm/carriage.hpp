// How a link of shared memory carries the messages of an operation: which protocol, in which pieces.
//
// Invariant: it follows from what the operation does, the geometry of the arena and whether ranks outnumber
// cores. It changes the speed only.
#pragma once

#include <cstdint>

#include "link/link.hpp"
#include "shm/arena.hpp"

namespace collectives {

// Sizes of messages that may be read out of the sender's process.
struct Pulled {
    std::uint64_t from = ~std::uint64_t{0};
    std::uint64_t below = ~std::uint64_t{0};
};

struct Carriage {
    // Messages that may be read out of the sender's process, where that takes as long as a copy, and where it
    // takes longer, for looking up pages.
    Pulled pulled;
    Pulled pulled_slowly;
    // How messages are cut where they are staged: into so many pieces, so that the receiver can begin, if
    // these are not too short for it, none longer than this.
    std::uint32_t pieces = 1;
    std::uint64_t longest_piece = ~std::uint64_t{0};
    // Messages of up to this size may lie in places of their link that change hands.
    std::uint64_t placed_up_to = 0;
};

Carriage choose_carriage(const Traffic& traffic, const Geometry& geometry, bool oversubscribed);

// The same for one operation after the other, most of which are alike.
class CarriageChoice {
  public:
    // This one from now on, whatever the traffic is.
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
