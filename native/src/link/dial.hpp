// One peer to be called: its addresses, tried in turn until one answers or it is clear that none will.
//
// Invariant: a peer where nobody listens, at any address, counts as gone after a second, and one that says no
// at once; all other problems may pass, and the pauses between two rounds over the addresses grow.
#pragma once

#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/wait.hpp"
#include "link/hello.hpp"

namespace collectives {

// Why a connection came to nothing. A verdict other than welcome is a definite no.
struct Problem {
    std::string what;
    bool refused = false;  // nobody listens
    Verdict verdict = Verdict::welcome;
    std::uint32_t version = 0;  // that the peer speaks
};

class Dial {
  public:
    Dial(int peer, std::vector<std::string> addresses)
        : peer_(peer), addresses_(std::move(addresses)), first_(Clock::now()), again_(first_) {}

    // When the next address is to be tried; never while one is.
    Clock::time_point due() const { return trying_ ? Clock::time_point::max() : again_; }
    // The address to try now.
    const std::string& next();
    // It came to nothing. Whether there is any hope left.
    bool failed(const Problem& problem);
    // Why there is none.
    Error error() const;

  private:
    int peer_;
    std::vector<std::string> addresses_;
    std::size_t next_ = 0;
    Clock::time_point first_;
    Clock::time_point again_;
    std::chrono::milliseconds pause_{0};
    bool refused_ = true;  // so far in this round, nobody listened
    bool trying_ = false;
    Problem last_;
    Problem definite_;
};

}  // namespace collectives
