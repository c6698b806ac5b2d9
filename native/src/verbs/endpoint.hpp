// What a rank tells a peer of its end of a link, in the authenticated handshake.
//
// Invariant: nothing of it is used before `check` has found that it is possible. The handshake proves who
// sent it, not that it makes sense.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "verbs/port.hpp"

namespace collectives::verbs {

inline constexpr std::uint8_t endpoint_version = 3;

struct Endpoint {
    abi::Gid gid{};
    std::uint32_t queue_pair = 0;
    std::uint32_t first_packet = 0;
    std::uint64_t ring_address = 0;
    std::uint64_t ring_units = 0;
    std::uint64_t direct_from = 0;  // bytes of the shortest message that the sender asks about
    std::uint32_t ring_key = 0;
    std::uint32_t slots = 0;
    std::uint16_t lid = 0;
    std::uint8_t layer = 0;
    std::uint8_t mtu = 0;
    std::uint8_t port = 0;
    std::uint8_t gid_type = 0;
    std::array<char, 26> device{};  // its name, for messages

    // "mlx5_0 port 1"; what cannot be printed is left out.
    std::string port_name() const;
};
static_assert(sizeof(Endpoint) == 88);

// The endpoint, without queue pair and ring.
Endpoint describe(const Port& port);

// Throws Error(transport_unavailable) for what no rank offers, and for a peer that this port cannot reach.
// `longest`: the bytes of the longest record, of which the ring has to hold several.
void check(const Endpoint& theirs, const Port& own, std::size_t longest, const std::string& peer);

}  // namespace collectives::verbs
