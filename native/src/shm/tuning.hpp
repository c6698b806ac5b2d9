// The constants of shared-memory links that were chosen by measurement.
//
// Each constant has its unit, and the number of the record in docs/decisions/ that justifies it. Constants of
// the layout (lines, slots, places) are in arena.hpp, since peers have to agree on them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace collectives::tuning {

// Up to this number of ranks that share cores, links send shorter messages faster than boards and staging do,
// since links have places, see Places (002, 018).
inline constexpr int few_ranks = 4;

// --- eager messages, through staging memory

// Bytes; for smaller copies streaming stores are never faster (015).
inline constexpr std::size_t timed_from = 8 << 10;
// The time of a copy by streaming stores counts so many times, since the peer then reads from memory (015).
inline constexpr double streaming_penalty = 1.5;
// Bytes; a message to a peer that sends nothing is divided into pieces of at least this size (017).
inline constexpr std::uint64_t smallest_piece = 16 << 10;

// --- messages that are read in place

// Bytes of a message in shared memory; a shorter message is copied, because waiting until the peer has read
// it takes longer (024).
inline constexpr std::size_t direct_from_shm = 2 << 10;

// --- cross-memory attach (CMA)

// CMA counts as quick if it reaches this share of the speed of a copy, by the fastest of `reading_tries`
// tries (022).
inline constexpr double quick_share = 0.38;
inline constexpr int reading_tries = 200;
// Bytes of a message that are announced at a time, so that the next steps can start on the first bytes (021).
inline constexpr std::size_t cma_piece = 1 << 20;
// The same for messages that are read in place in shared memory.
inline constexpr std::size_t direct_piece = 1 << 20;
// Bytes; the sender of a piece of at least this size may copy half of it (023).
inline constexpr std::size_t joint_from = 64 << 10;
// Seconds that a peer may take, after an error, to end a system call that writes to this process.
inline constexpr double write_ends_within = 1.0;

}  // namespace collectives::tuning
