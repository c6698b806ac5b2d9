// The mechanisms of shared memory that can be switched off, one by one, to test and to measure without them.
//
// Invariant: a mechanism changes the speed only, so results are the same without it. Ranks agree on a path by
// what all of them know, so the switches must be the same on all ranks of a communicator.
#pragma once

#include <cstdint>

namespace collectives {

enum class Mechanism : std::uint8_t {
    board,        // short operations on one board
    by_core,      // sums on the board, core by core
    pool,         // allreduces in accumulators that all ranks share
    pool_copies,  // a copy of each pooled sum for the other core
    shared_sums,  // reductions that ranks share out
    relay,        // results written to where peers want them
    multicast,    // one staged copy for several peers
    spread,       // sums stored to several places at once
};

// Those that are on: all but the ones that the environment's COLLECTIVES_WITHOUT names, such as
// "by-core,relay".
class Mechanisms {
  public:
    static Mechanisms from_environment();

    bool has(Mechanism mechanism) const { return (off_ >> static_cast<unsigned>(mechanism) & 1U) == 0; }

  private:
    std::uint32_t off_ = 0;
};

}  // namespace collectives
