// What the communicators of one `init`, and those split or duplicated from it, have in common.
//
// Invariant: one control thread serves them all. It starts when it is first needed and ends with the last
// communicator, for good; which of them was there first makes no difference.
#pragma once

#include <memory>
#include <mutex>

#include "core/control.hpp"

namespace collectives {

class Job {
  public:
    Job() = default;
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

    // From any thread. Each communicator comes once, and goes once. Error(aborted) after the last has gone.
    void enter();
    void exit();

    // For who has entered: it is there until `exit`.
    Control& control();

    // A communicator with that name is about to be made: callers that come sooner wait for it. `forget`: it
    // will not be made.
    void expect(const GroupId& group);
    void forget(const GroupId& group);

  private:
    std::mutex mutex_;
    std::size_t communicators_ = 0;
    bool over_ = false;
    std::unique_ptr<Control> control_;
};

}  // namespace collectives
