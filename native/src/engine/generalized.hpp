// An operation that code outside of the core runs, such as another library on its own device. That code, the
// runner, reports the end. In MPI this is a generalized request.
//
// Invariant: the operation begins once, after all ranks have made the same call, and ends once: the runner
// reports it, or the communicator does not need it any more. All members may be called from any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "base/error.hpp"

namespace collectives {

class GeneralizedRequest {
  public:
    // `engine`: the name of the runner's engine. `news` is called when the operation has ended.
    GeneralizedRequest(const std::string& engine, std::function<void()> news);
    GeneralizedRequest(const GeneralizedRequest&) = delete;
    GeneralizedRequest& operator=(const GeneralizedRequest&) = delete;

    // The name is valid as long as the process, as that of an Engine.
    const char* engine() const { return engine_; }

    // --- for the runner
    enum class State { waiting, begun, over };
    // Wait until the operation has begun or is over; returns `waiting` after `timeout`.
    State wait(std::chrono::nanoseconds timeout);
    // Report that the result is complete. Does nothing if the operation is over already.
    void complete() { end(std::nullopt); }
    // Report a failure, which breaks the communicator.
    void fail(const Error& error) { end(error); }

    // --- for the task of the operation
    void begin();
    bool is_over() const;
    // The reported failure.
    std::optional<Error> error() const;
    // The communicator does not wait any more: end the operation, without calling `news`.
    void abandon();

  private:
    void end(std::optional<Error> error);

    const char* engine_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    State state_ = State::waiting;
    std::optional<Error> error_;
    std::function<void()> news_;
};

}  // namespace collectives
