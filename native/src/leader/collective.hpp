// One collective as the leader runs it: what each rank reads and writes, and in which form.
//
// Invariant: arguments are checked before a task exists. Memory that cannot be exported is staged in memory
// of this library, by copies in the caller's stream.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/types.hpp"
#include "cuda/kinds.hpp"
#include "leader/communicator.hpp"

namespace collectives::leader {

using cuda::Kind;

struct Arguments {
    Kind kind = Kind::allreduce;  // no message
    cuda::Pointer in = 0;         // 0 if this rank has no input
    cuda::Pointer out = 0;        // 0 if it has no output
    // Elements in the part of each rank; of allreduce, reduce and broadcast: in the whole array.
    std::uint64_t count = 0;
    DType dtype = DType::uint8;
    std::size_t unit = 1;  // bytes of an element
    Op op = Op::sum;
    int root = 0;
    cuda::StreamHandle stream = nullptr;
    std::optional<cuda::StreamHandle> producer;  // the stream in which the input was written, if another
};

// Throws Error(invalid) for memory or a stream that is not the device's.
std::unique_ptr<StreamTask> make_task(std::shared_ptr<Communicator> communicator, const Arguments& arguments);

// Complete when a stream of the communicator's device has passed what is in it now, replays of graphs
// included. Throws Error(invalid).
std::unique_ptr<StreamTask> make_marker(std::shared_ptr<Communicator> communicator,
                                        cuda::StreamHandle stream);

}  // namespace collectives::leader
