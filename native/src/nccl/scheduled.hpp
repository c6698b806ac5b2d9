// A collective by a schedule of this library on device memory: messages by NCCL, reductions by kernels.
//
// Invariant: all of it is in the caller's stream, and nothing waits on the host. Temporary memory is the
// device's, and is used again only when the stream has passed the operation. Operands are combined in the
// order of the schedule.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "nccl/communicator.hpp"
#include "nccl/rounds.hpp"

namespace collectives::nccl {

struct ScheduledArguments {
    std::shared_ptr<const Rounds> rounds;
    cuda::Pointer in = 0;   // 0 if this rank has no input
    cuda::Pointer out = 0;  // 0 if it has no output; may be `in`
    std::string compiler;   // the path of NVRTC, for a schedule that reduces
    Stream stream = nullptr;
    std::optional<Stream> producer;  // the stream in which the input was written, if that is another one
};

// Checks the arguments, whose memory the driver has to know. Throws Error(invalid).
std::unique_ptr<StreamTask> make_scheduled_task(std::shared_ptr<Communicator> communicator,
                                                ScheduledArguments arguments);

}  // namespace collectives::nccl
