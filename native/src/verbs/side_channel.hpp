// The TCP connection of a link's handshake, which the link keeps beside its queue pair: over it a rank says
// that its queue pair is ready, and how many records it has sent when it ends. A peer learns from it that a
// process has ended, which a queue pair does not tell.
//
// Invariant: nothing here blocks. A rank writes to the peer's memory only after the peer has said that it is
// ready, since a queue pair drops what comes before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/unique_fd.hpp"

namespace collectives::verbs {

class SideChannel {
  public:
    // What a rank says at its end.
    struct Goodbye {
        std::uint64_t sent = 0;  // records
        std::int32_t lost = -1;  // the rank whose loss is the reason; -1: none
        std::uint32_t magic = 0;
    };

    explicit SideChannel(UniqueFd socket) : socket_(std::move(socket)) {}

    void say_ready();
    void say_goodbye(std::uint64_t sent, std::optional<int> lost);
    // Read what has arrived. Returns whether that was anything.
    bool look();

    int descriptor() const { return socket_.get(); }
    bool is_ready() const { return is_ready_; }  // the peer
    bool has_ended() const { return has_ended_; }
    const std::optional<Goodbye>& goodbye() const { return goodbye_; }

  private:
    UniqueFd socket_;
    std::array<std::byte, 1 + sizeof(Goodbye)> buffer_{};
    std::size_t have_ = 0;
    bool is_ready_ = false;
    bool has_ended_ = false;
    std::optional<Goodbye> goodbye_;
};

}  // namespace collectives::verbs
