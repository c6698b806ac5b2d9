// The ranks of jobs that are threads of this process, so that they exchange notices without sockets.
//
// Invariant: `send` calls a rank's receiver only between its `enter` and the end of its `leave`.
#pragma once

#include <functional>

#include "core/notice.hpp"

namespace collectives::local_ranks {

using Receiver = std::function<void(int from, const Notice&)>;

// Called from any thread. `job`: the id of the job's control plane. `receive` must not call back.
void enter(const GroupId& job, int rank, Receiver receive);
void leave(const GroupId& job, int rank);
// False if that rank has not entered, or has left.
bool send(const GroupId& job, int to, int from, const Notice& notice);

}  // namespace collectives::local_ranks
