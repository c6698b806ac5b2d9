// One call of NCCL: which function, with which memory and elements. An operation is one of them, or several
// in a group.
//
// Invariant: what only moves elements moves bytes. A function that this NCCL lacks is replaced by a message
// for each pair of ranks.
#pragma once

#include <cstdint>
#include <span>

#include "cuda/api.hpp"
#include "cuda/kinds.hpp"
#include "nccl/communicator.hpp"
#include "nccl/elements.hpp"

namespace collectives::nccl {

using cuda::Kind;

struct Piece {
    Kind kind = Kind::allreduce;
    cuda::Pointer in = 0;   // 0 if this rank has no input
    cuda::Pointer out = 0;  // 0 if it has no output
    // Elements in the part of each rank; of allreduce, reduce, broadcast and messages: in the whole array.
    std::uint64_t count = 0;
    std::size_t unit = 1;  // bytes of an element
    Elements elements;
    int peer = 0;  // the root, or the other rank of a message
};

// Throws Error(invalid) unless the driver knows what the piece reads and writes as memory of that device.
void check(const Piece& piece, const Communicator::Member& member);

// Calls NCCL for all pieces, in one group if there are several.
Result run(std::span<const Piece> pieces, const Communicator::Member& member, const Api& api, Handle handle,
           Stream stream);

}  // namespace collectives::nccl
