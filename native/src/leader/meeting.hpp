// How the ranks that share a device meet: local sockets between the leader and each other rank, by which
// descriptors of memory are sent.
//
// Invariant: who connects proves by a random token, which the ranks have exchanged before over authenticated
// records, that it is that rank. A socket stays open as long as its rank has memory of the other end mapped,
// so its end says that the memory may be freed.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"

namespace collectives::leader {

// Called again and again while ranks meet; throws the Error for which this rank gives up.
using Patience = std::function<void()>;
using Token = std::array<std::uint8_t, 16>;

Token random_token();

// The sockets of one rank: of the leader to all others, of another rank to the leader.
class Meeting {
  public:
    // On the leader: it listens at once.
    Meeting(int size, const Token& token);
    // On another rank: connects to a leader that listens with that token.
    Meeting(int rank, int size, const Token& token);

    // The leader accepts all others and sends each `descriptor`; another rank returns the one that it gets.
    UniqueFd meet(int descriptor, const Patience& patience);

    // Send the descriptor of the allocation `buffer` to the leader. False if it cannot be sent now.
    bool send(std::uint64_t buffer, int descriptor) const;
    // On the leader: the descriptor that this rank has sent for `buffer`; nothing if it has not come.
    std::optional<UniqueFd> take(int rank, std::uint64_t buffer);

    // The sockets, which are closed when no memory of the others is mapped any more.
    std::vector<UniqueFd> release();

  private:
    struct Hello {
        Token token;
        std::int32_t rank = 0;
    };
    struct Sent {
        int rank = 0;
        std::uint64_t buffer = 0;
        UniqueFd descriptor;
    };
    void receive(int rank);

    int rank_ = 0;
    int size_;
    Token token_;
    UniqueFd listener_;            // of the leader
    std::vector<UniqueFd> peers_;  // by rank; of another rank: that of the leader is the first
    std::vector<Sent> sent_;       // what has come and was not taken
};

}  // namespace collectives::leader
