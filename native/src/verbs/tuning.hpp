// What the links of this transport are made of. None of it was measured on hardware (docs/verbs.md).
#pragma once

#include <cstddef>
#include <cstdint>

namespace collectives::verbs {

// Bytes of the ring in which a link receives, and of the buffer from which it sends.
inline constexpr std::size_t ring_bytes = 256 << 10;
// The most bytes of one record, with its head; an eighth of the ring, so that eight are under way at a time.
inline constexpr std::size_t record_bytes = 32 << 10;
// Records that may be under way although the peer does not poll.
inline constexpr std::uint32_t record_slots = 128;
// Work requests that may be in the send queue.
inline constexpr std::uint32_t send_depth = 128;
// One in so many work requests is signalled, beside the last one of each message.
inline constexpr std::uint32_t signal_every = 32;
// Receives are posted again when so many have been used.
inline constexpr std::uint32_t receives_at_a_time = 16;
// Bytes that a work request may carry itself, instead of an address.
inline constexpr std::uint32_t inline_wanted = 256;

// The most bytes of a piece of a message that is written to its destination: a receiver notices so many at a
// time, and goes on with them.
inline constexpr std::size_t piece_bytes = 256 << 10;
// Messages of at least so many bytes wait for the receiver's answer, and then skip its copy (docs/verbs.md).
inline constexpr std::size_t direct_from = 64 << 10;

// Memory that does not last is registered for one message of at least so many bytes. To register costs about
// as much as to copy some 100 KiB.
inline constexpr std::size_t registered_once_from = 512 << 10;
// Memory of callers that stays registered: it is locked in place as long as its arrays live.
inline constexpr std::size_t most_kept_bytes = std::size_t{2} << 30;
inline constexpr std::size_t most_kept = 256;

inline constexpr std::uint8_t min_rnr_timer = 12;
inline constexpr std::uint8_t hop_limit = 255;

}  // namespace collectives::verbs
