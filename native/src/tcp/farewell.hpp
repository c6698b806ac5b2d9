// The connection of a link over TCP that carries no data. A rank that gives up because another rank was lost
// sends the number of the lost rank there, which is possible even in the middle of a message.
//
// Invariant: it is closed before the connections with data, so that a peer that sees their end finds the
// number here.
#pragma once

#include <optional>
#include <utility>

#include "base/unique_fd.hpp"

namespace collectives {

class Farewell {
  public:
    explicit Farewell(UniqueFd socket) : socket_(std::move(socket)) {}

    // Send the number of the lost rank, if there is one, and close the connection in this direction.
    void say(std::optional<int> lost);
    // The number that the peer has sent, if the peer ended by itself. Waits only briefly, since a machine
    // that vanishes sends nothing.
    std::optional<int> hear() const;

  private:
    UniqueFd socket_;
};

}  // namespace collectives
