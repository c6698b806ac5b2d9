// The sleep of a rank until a peer, a socket or its own control thread has something for it.
//
// Invariant: no wake-up is lost if the rank calls `arm`, then checks once more, and sleeps only if it found
// nothing. While a rank is not armed, each message costs its peer one load of a flag.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <span>
#include <vector>

#include "base/unique_fd.hpp"
#include "link/colocation.hpp"
#include "link/waker.hpp"

namespace collectives {

class Sleeper final : public Waker {
  public:
    Sleeper();
    // Peers in other processes ring at this doorbell, which must stay until `close`.
    void use(Doorbell& doorbell);

    // Tell peers to ring from now on.
    void arm(bool with_sockets);
    void disarm();
    // Sleep until rung, until a socket is ready, or for `timeout`.
    void sleep(std::span<const pollfd> sockets, std::chrono::nanoseconds timeout);

    void ring() override;

    // Close the descriptor. After this the rank does not sleep, and `ring` does nothing.
    void close();

  private:
    int descriptor() const { return doorbell_ != nullptr ? doorbell_->descriptor() : event_.get(); }

    std::mutex ringing_;  // for the two members below, if other threads use them
    UniqueFd event_;      // used if there is no doorbell
    Doorbell* doorbell_ = nullptr;
    std::atomic<bool> armed_{false};
    bool at_descriptor_ = true;
    std::vector<pollfd> polled_;
};

}  // namespace collectives
