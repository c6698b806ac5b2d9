// The constants of shared-memory links that come from measurement.
//
// Each constant has its unit, and the number of the record in docs/decisions/ that argues for it. Constants
// of layout (lines, slots, places) stand in arena.hpp, since peers have to agree upon them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace collectives::tuning {

// --- eager messages, through staging memory

// Bytes; smaller copies by streaming stores pay nowhere (015).
inline constexpr std::size_t timed_from = 8 << 10;
// Times as long counts a copy by streaming stores, since it is read from memory (015).
inline constexpr double streaming_penalty = 1.5;
// Bytes; a message that goes one way is cut into no shorter pieces (017).
inline constexpr std::uint64_t smallest_piece = 16 << 10;

// --- messages that are read where they lie

// Bytes of a message in shared memory; below, a copy is cheaper than to wait until the peer has read the
// original (024).
inline constexpr std::size_t direct_from_shm = 2 << 10;

// --- cross-memory attach (CMA)

// The kernel is quick if it reads at this share of the speed of a copy, by the fastest of so many tries
// (022).
inline constexpr double quick_share = 0.38;
inline constexpr int reading_tries = 200;
// Bytes of a message that are announced at once, so that what follows can start on the first ones
// (021).
inline constexpr std::size_t cma_piece = 1 << 20;
// The same for what is read where it lies in shared memory.
inline constexpr std::size_t direct_piece = 1 << 20;
// Bytes of such a piece from which on its sender may write half of it (023).
inline constexpr std::size_t joint_from = 64 << 10;
// Seconds that a peer may take to end a system call which writes here, after an error.
inline constexpr double write_ends_within = 1.0;

}  // namespace collectives::tuning
