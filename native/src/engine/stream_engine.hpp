// Operations on device memory, which are ordered by a stream, and the engines that run them.
//
// Invariant: such an operation leaves the queue of its communicator when it is issued: it has its place in
// the order of calls and in a stream, and nobody waits for it on the host. It is complete when the stream has
// passed it, which a load of host memory shows. An engine belongs to one communicator, and ends all of its
// operations together.
#pragma once

#include <optional>
#include <string>

#include "base/export.hpp"

namespace collectives {

// One operation. All members may throw Error.
class COLLECTIVES_API StreamTask {
  public:
    StreamTask() = default;
    StreamTask(const StreamTask&) = delete;
    StreamTask& operator=(const StreamTask&) = delete;
    virtual ~StreamTask() = default;

    // Put the operation into its stream. Called once, on the caller's thread, in the order of calls. May wait
    // for other ranks, which `StreamEngine::abort` ends.
    virtual void issue() = 0;
    // Whether the stream has passed the operation. From any thread, after `issue`; never blocks.
    virtual bool complete() const = 0;
};

class COLLECTIVES_API StreamEngine {
  public:
    StreamEngine() = default;
    StreamEngine(const StreamEngine&) = delete;
    StreamEngine& operator=(const StreamEngine&) = delete;
    virtual ~StreamEngine() = default;

    // Valid as long as the process.
    virtual const char* name() const = 0;
    // What the engine has found wrong by itself; nothing if all is well. From any thread, never blocks.
    virtual std::optional<std::string> failure() = 0;
    // End all operations, and every call that waits in `issue`. Returns when nothing of them runs on the
    // device any more; no operation is issued afterwards. From any thread; may be called again.
    virtual void abort() noexcept = 0;
    // Free what the engine holds. All operations are complete, or were aborted.
    virtual void close() noexcept = 0;
};

}  // namespace collectives
