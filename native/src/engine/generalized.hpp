// An operation that code outside of the core does, such as another library on its own device, and whose end
// that code reports. In MPI this is a generalized request.
//
// Invariant: it begins once, after all ranks have made the same call, and ends once: by those who do it, or
// because the communicator needs it no more. All members may be called from any thread.
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
    // `engine`: of those who do it. `news`: it has ended.
    GeneralizedRequest(const std::string& engine, std::function<void()> news);
    GeneralizedRequest(const GeneralizedRequest&) = delete;
    GeneralizedRequest& operator=(const GeneralizedRequest&) = delete;

    // Valid as long as the process, as that of an Engine.
    const char* engine() const { return engine_; }

    // --- for those who do it
    enum class State { waiting, begun, over };
    // Until it has begun or is over; `waiting` after that long.
    State wait(std::chrono::nanoseconds timeout);
    // Its result is in place. Nothing where it is over already.
    void complete() { end(std::nullopt); }
    // It has failed: the communicator breaks for that cause.
    void fail(const Error& error) { end(error); }

    // --- for its task
    void begin();
    bool is_over() const;
    // Why it failed.
    std::optional<Error> error() const;
    // Nobody waits for it any more, and no news are wanted.
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
