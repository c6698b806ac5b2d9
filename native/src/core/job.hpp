// The common part of the communicator of one `init` and all communicators split or duplicated from it.
//
// Invariant: one control thread serves all these communicators. It starts when it is first needed, and ends,
// for good, with the last communicator, whichever that is.
#pragma once

#include <memory>
#include <mutex>

#include "core/control.hpp"

namespace collectives {

class Job {
  public:
    explicit Job(Heartbeats heartbeats = {}) : heartbeats_(heartbeats) {}
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

    // From any thread. Each communicator enters once, and exits once. `enter` throws Error(aborted) after the
    // last communicator has left, and returns whether this is the first one.
    bool enter();
    void exit();

    // Only for communicators that have entered; valid until `exit`.
    Control& control();
    const Heartbeats& heartbeats() const { return heartbeats_; }

    // A communicator with that id is about to be made: peers that connect to it before have to wait.
    // `forget`: it will not be made.
    void expect(const GroupId& group);
    void forget(const GroupId& group);

  private:
    Heartbeats heartbeats_;
    std::mutex mutex_;
    std::size_t communicators_ = 0;
    bool begun_ = false;
    bool over_ = false;
    std::unique_ptr<Control> control_;
};

}  // namespace collectives
