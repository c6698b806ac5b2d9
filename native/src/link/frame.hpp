// The description of an operation that ranks exchange: the call, on which all ranks must agree, and the frame
// that precedes each message on a byte stream.
//
// Invariant: fixed-size structs in the host's byte order (both supported machines are little endian; the
// handshake refuses others). The wire version changes with any of them.
#pragma once

#include <cstdint>
#include <string>

#include "base/export.hpp"

namespace collectives {

inline constexpr std::uint32_t wire_version = 8;

// One call of a collective; all ranks have to make the same call.
struct COLLECTIVES_API Call {
    std::uint64_t sequence =
        0;  // number of collectives that this communicator ran before; of send/recv: of messages on this link
    std::uint64_t count = 0;      // elements; 0 if ranks may pass different numbers
    std::uint32_t algorithm = 0;  // hash of the algorithm's name and parameters
    std::uint32_t root = 0;
    std::uint8_t collective = 0;
    std::uint8_t op = 0;
    std::uint8_t dtype = 0;
    std::uint8_t unused = 0;
    std::uint32_t epoch = 0;

    bool operator==(const Call&) const = default;

    // Whether it is a message from one rank to another.
    bool is_message() const;
    // A 32-bit hash of the call and of `history`, for collectives the fingerprint of the previous collective.
    std::uint32_t fingerprint(std::uint32_t history = 0) const;
    // "operation 17: allreduce(sum, float32, 1000 elements)"
    std::string describe() const;
};
static_assert(sizeof(Call) == 32);

struct Frame {
    Call call;
    std::uint64_t length = 0;  // bytes of the whole message
    std::uint32_t magic = 0;
    std::uint32_t ordinal = 0;  // number of the message in this direction of the link; wraps around
    std::uint32_t part = 0;     // number of the part that follows, from 1 on; 0: the whole message
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
// The op of a call whose reduction is a Python function of the caller.
inline constexpr std::uint8_t caller_op = 255;

COLLECTIVES_API const char* collective_name(Collective collective);

}  // namespace collectives
