// Mechanisms that can be switched off, one by one, to test and to measure without them.
//
// Invariant: a mechanism changes the speed only, so results are the same without it. All ranks must choose
// the same engine, so the switches of engines must be the same on all ranks of a communicator; the switches
// of links may differ.
#pragma once

#include <cstdint>

namespace collectives {

enum class Mechanism : std::uint8_t {
    // of engines
    board,        // short operations on a board, pages that all ranks read
    by_core,      // on the board, sums for each core first
    pool,         // allreduces in accumulators that all ranks share
    pool_copies,  // a copy of each pooled sum for the other core
    relay,        // results of reductions written straight to the peers' destinations
    multicast,    // one staged copy for several peers
    spread,       // sums stored to several destinations at once
    // of links
    cma,             // the receiver reads the sender's memory (process_vm_readv)
    joint_copy,      // the sender of such a message copies half of it (process_vm_writev)
    streaming,       // copies into staging memory choose between plain and streaming stores
    line_ownership,  // readers of staging memory take ownership of its cache lines
    places,          // staging memory that changes its owner with each message
};

// The mechanisms that are on: all except those that the environment variable COLLECTIVES_WITHOUT names, such
// as "by-core,places".
class Mechanisms {
  public:
    static Mechanisms from_environment();

    bool has(Mechanism mechanism) const { return (off_ >> static_cast<unsigned>(mechanism) & 1U) == 0; }

  private:
    std::uint32_t off_ = 0;
};

// Whether the mechanism is on in this process; the environment is read once.
bool uses(Mechanism mechanism);

}  // namespace collectives
