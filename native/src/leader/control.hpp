// The words by which the streams of ranks that share a device wait for each other.
//
// Invariant: each rank has a block of them in its own memory of the device, which others have mapped. A rank
// is freed by words of its own block alone, so no other rank's end can hold its streams, and to free itself
// it writes nothing that another rank takes for a result.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/api.hpp"

namespace collectives::leader {

// The calls that a communicator can capture into graphs.
inline constexpr std::uint32_t most_captured = 1024;
// What all epochs are, until a rank gives up.
inline constexpr std::uint32_t epoch_begins = 1;

namespace word {

inline constexpr std::size_t apart = 128;  // bytes, so that two streams never poll one cache line

// In the block of each rank
inline constexpr std::size_t epoch = 0;
inline constexpr std::size_t done = apart;  // the last call whose outputs are complete
constexpr std::size_t captured_done(std::uint32_t index) { return 2 * apart + sizeof(std::uint32_t) * index; }
// In the block of the leader
inline constexpr std::size_t ready_begin = 2 * apart + sizeof(std::uint32_t) * most_captured;
constexpr std::size_t ready(int rank) { return ready_begin + apart * static_cast<std::size_t>(rank); }
constexpr std::size_t captured_ready(int size, std::uint32_t index, int rank) {
    return ready(size) +
           sizeof(std::uint32_t) * (static_cast<std::size_t>(index) * static_cast<std::size_t>(size) +
                                    static_cast<std::size_t>(rank));
}
constexpr std::size_t bytes(int size) { return captured_ready(size, most_captured, 0); }

}  // namespace word

}  // namespace collectives::leader
