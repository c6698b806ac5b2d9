// How a rank sleeps until a peer, a socket or its own control thread has something for it.
//
// Invariant: `arm` before the last look, `sleep` only if that look found nothing: then no wake-up is lost. A
// rank that is not armed costs its peers one load of a flag per message.
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
    // Peers in other processes ring there, too. It must stay until `close`.
    void use(Doorbell& doorbell);

    // Tell peers to ring from now on.
    void arm(bool with_sockets);
    void disarm();
    // Sleep until rung, until a socket is ready, or for `timeout`.
    void sleep(std::span<const pollfd> sockets, std::chrono::nanoseconds timeout);

    void ring() override;

    // Give up the descriptor; this rank sleeps no more, and who rings does nothing.
    void close();

  private:
    int descriptor() const { return doorbell_ != nullptr ? doorbell_->descriptor() : event_.get(); }

    std::mutex ringing_;  // for the two below, where others than the sleeper use them
    UniqueFd event_;      // where there is no doorbell
    Doorbell* doorbell_ = nullptr;
    std::atomic<bool> armed_{false};
    bool at_descriptor_ = true;
    std::vector<pollfd> polled_;
};

}  // namespace collectives
