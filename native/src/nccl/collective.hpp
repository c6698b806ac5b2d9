// One collective as NCCL runs it: which function, with which element type, on which stream.
//
// Invariant: what NCCL would refuse, or compute in another way than this library, is refused before a task
// exists. Complex sums are sums of pairs; collectives that only move elements move bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/types.hpp"
#include "nccl/communicator.hpp"

namespace collectives::nccl {

enum class Kind : std::uint8_t {
    allreduce,
    reduce,
    broadcast,
    allgather,
    reduce_scatter,
    gather,
    scatter,
    alltoall,
};

// What NCCL is told of `count` elements of a dtype under a reduction.
struct Elements {
    DataType type = type_uint8;
    std::uint64_t each = 1;  // of NCCL's elements, in one element
    Reduction op = op_sum;
};

// Why NCCL does not reduce such elements; null if it does, and `elements` is set.
const char* why_not_reduced(DType dtype, Op op, Elements& elements);

struct Arguments {
    Kind kind = Kind::allreduce;
    cuda::Pointer in = 0;   // 0 if this rank has no input
    cuda::Pointer out = 0;  // 0 if it has no output
    // Elements in the part of each rank; of allreduce, reduce and broadcast: in the whole array.
    std::uint64_t count = 0;
    std::size_t unit = 1;  // bytes of an element
    Elements elements;
    int root = 0;
    Stream stream = nullptr;
    std::optional<Stream> producer;  // the stream in which the input was written, if that is another one
};

// Checks the arguments, whose memory the driver has to know. Throws Error(invalid).
std::unique_ptr<StreamTask> make_task(std::shared_ptr<Communicator> communicator, const Arguments& arguments);

}  // namespace collectives::nccl
