// An operation that NCCL runs, as a task of a communicator.
//
// Invariant: what NCCL would refuse is refused before a task exists. An operation in a stream that is being
// captured becomes a part of the graph: it is over once it is issued, and nobody watches its replays.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "nccl/communicator.hpp"
#include "nccl/piece.hpp"

namespace collectives::nccl {

struct Arguments {
    std::vector<Piece> pieces;
    Stream stream = nullptr;
    std::optional<Stream> producer;  // the stream in which the input was written, if that is another one
};

// Checks the arguments, whose memory the driver has to know. Throws Error(invalid).
std::unique_ptr<StreamTask> make_task(std::shared_ptr<Communicator> communicator, Arguments arguments);

// Calls functions of NCCL with memory of its own, short and long, so that NCCL makes the connections that it
// makes at the first call.
std::unique_ptr<StreamTask> make_connecting_task(std::shared_ptr<Communicator> communicator,
                                                 std::vector<Kind> kinds);

// Complete when a stream of the communicator's device has passed what is in it now. Throws Error(invalid).
std::unique_ptr<StreamTask> make_marker(std::shared_ptr<Communicator> communicator, Stream stream);

}  // namespace collectives::nccl
