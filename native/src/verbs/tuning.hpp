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

// A request that is not acknowledged is sent again after 4.096 µs * 2^16 = 0.27 s, six times: a dead path is
// an error after 1.9 s. Hardware may wait up to four times as long, which is still within the limit of
// heartbeats.
inline constexpr std::uint8_t ack_timeout = 16;
inline constexpr std::uint8_t retries = 6;
// A peer whose receives are used up would be an error at once: credits are there so that this never happens.
inline constexpr std::uint8_t rnr_retries = 0;
inline constexpr std::uint8_t min_rnr_timer = 12;
inline constexpr std::uint8_t hop_limit = 255;

}  // namespace collectives::verbs
