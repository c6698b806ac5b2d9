// How a rank sleeps until a peer, a socket or its own control thread has something for it.
//
// Invariant: `arm` before the last look, `sleep` only if that look found nothing: then no wake-up is lost. A
// rank that is not armed costs its peers one load of a flag per message.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "shm/arena.hpp"

namespace collectives {

class Sleeper {
  public:
    Sleeper();
    // Peers share memory with us through `arena`, and ring there.
    void share(std::shared_ptr<Arena> arena) { arena_ = std::move(arena); }

    // Tell peers to ring from now on.
    void arm(bool with_sockets);
    void disarm();
    // Sleep until rung, until a socket is ready, or for `timeout`.
    void sleep(std::span<const pollfd> sockets, std::chrono::nanoseconds timeout);

    // From any thread of this process: end the sleep, or the one that is about to begin. Whoever rings has
    // first stored what the sleeper looks at between `arm` and `sleep`.
    void ring();

    // Give up the descriptors; nobody sleeps or rings any more.
    void close() {
        arena_.reset();
        event_.reset();
    }

  private:
    int event() const { return arena_ ? arena_->wake_fd() : event_.get(); }

    UniqueFd event_;  // where there is no arena
    std::shared_ptr<Arena> arena_;
    std::atomic<bool> armed_{false};
    bool on_eventfd_ = true;
    std::uint32_t seen_ = 0;
    std::vector<pollfd> polled_;
};

}  // namespace collectives
