// Connecting to one peer: its addresses are tried in turn until one answers, or until there is no hope left.
//
// Invariant: a peer counts as gone after 0.3 s in which nothing listens at any address, and at once if it
// refuses the handshake. All other problems may be temporary; pauses between rounds over the addresses grow.
#pragma once

#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/wait.hpp"
#include "link/hello.hpp"

namespace collectives {

// Why a connection attempt failed. A verdict other than `welcome` is final.
struct Problem {
    std::string what;
    bool refused = false;  // nothing listens there
    Verdict verdict = Verdict::welcome;
    std::uint32_t version = 0;  // the peer's wire version
};

class Dial {
  public:
    Dial(int peer, std::vector<std::string> addresses)
        : peer_(peer), addresses_(std::move(addresses)), first_(Clock::now()), again_(first_) {}

    // When to try the next address; never while an attempt is in progress.
    Clock::time_point due() const { return trying_ ? Clock::time_point::max() : again_; }
    // The address to try now.
    const std::string& next();
    // Report that the attempt has failed; returns whether to go on.
    bool failed(const Problem& problem);
    // The error if there is no hope left.
    Error error() const;

  private:
    int peer_;
    std::vector<std::string> addresses_;
    std::size_t next_ = 0;
    Clock::time_point first_;
    Clock::time_point again_;
    std::chrono::milliseconds pause_{0};
    bool refused_ = true;  // nothing listened at any address so far in this round
    bool trying_ = false;
    Problem last_;
    Problem definite_;
};

}  // namespace collectives
