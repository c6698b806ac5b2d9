// What ranks say about an operation: the call as every rank must have made it, and the frame that precedes
// each message on a byte stream.
//
// Invariant: fixed-size structs in the host's byte order (both supported machines are little endian; the
// handshake refuses others). The wire version changes with any of them.
#pragma once

#include <cstdint>
#include <string>

#include "base/export.hpp"

namespace collectives {

inline constexpr std::uint32_t wire_version = 8;

// One call of a collective, as all ranks have to agree on it.
struct COLLECTIVES_API Call {
    std::uint64_t sequence =
        0;                    // collectives: how many this communicator ran before; send/recv: on this link
    std::uint64_t count = 0;  // elements; 0 where ranks may differ
    std::uint32_t algorithm = 0;  // hash of the algorithm's name and parameters
    std::uint32_t root = 0;
    std::uint8_t collective = 0;
    std::uint8_t op = 0;
    std::uint8_t dtype = 0;
    std::uint8_t unused = 0;
    std::uint32_t epoch = 0;

    bool operator==(const Call&) const = default;

    // From one rank to another.
    bool is_message() const;
    // 32 bits that differ, as good as always, between different calls, and between calls after different
    // `history`: of collectives, the fingerprint of the one before.
    std::uint32_t fingerprint(std::uint32_t history = 0) const;
    // "operation 17: allreduce(sum, float32, 1000 elements)"
    std::string describe() const;
};
static_assert(sizeof(Call) == 32);

struct Frame {
    Call call;
    std::uint64_t length = 0;  // bytes of the whole message
    std::uint32_t magic = 0;
    std::uint32_t ordinal = 0;  // of the message, on this direction of the link; wraps around
    std::uint32_t part = 0;     // which part of it follows, from 1 on; 0: all of it
    std::uint32_t unused = 0;
};
static_assert(sizeof(Frame) == 56);

inline constexpr std::uint32_t frame_magic = 0x4d465950;  // "PYFM"

enum class Collective : std::uint8_t {
    allreduce,
    reduce,
    broadcast,
    allgather,
    reduce_scatter,
    gather,
    scatter,
    alltoall,
    barrier,
    send,
    scan,
    exscan,
};
inline constexpr int n_collectives = 12;
// The op of a call whose reduction is a function of the caller's.
inline constexpr std::uint8_t caller_op = 255;

COLLECTIVES_API const char* collective_name(Collective collective);

}  // namespace collectives
