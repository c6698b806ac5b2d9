// The connection of a link over TCP that carries no data: a rank that gives up says there whose loss is the
// reason, whatever the others are in the middle of.
//
// Invariant: it ends before those with data do, so that who sees their end finds here all there is to know.
#pragma once

#include <optional>
#include <utility>

#include "base/unique_fd.hpp"

namespace collectives {

class Farewell {
  public:
    explicit Farewell(UniqueFd socket) : socket_(std::move(socket)) {}

    // Say it, where there is something to say, and end the connection in this direction.
    void say(std::optional<int> lost);
    // What the peer has said, if it ended by itself. Waits a moment for it: machines that vanish say nothing.
    std::optional<int> hear() const;

  private:
    UniqueFd socket_;
};

}  // namespace collectives
