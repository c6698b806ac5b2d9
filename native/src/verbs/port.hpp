// The ports of this machine's RDMA devices, and the choice of one for a rank.
//
// Invariant: a port is used only if it is active and has an address (GID). Its address is the one that
// reaches farthest: RoCE v2, which routers forward, before RoCE v1; an IPv4 address before one of IPv6, and
// both before one that is valid on a single link only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "link/registry.hpp"
#include "verbs/abi.hpp"

namespace collectives::verbs {

struct Port {
    std::string device;
    std::uint8_t number = 1;
    std::uint32_t gid_index = 0;
    abi::Gid gid{};
    std::uint32_t gid_type = abi::gid_ib;
    std::uint8_t layer = abi::layer_unspecified;
    std::uint16_t lid = 0;
    std::uint32_t mtu = 0;              // active, as a code of verbs
    std::uint32_t longest_message = 0;  // bytes of a work request
    int numa_node = -1;                 // of the device; -1 if unknown

    std::string name() const;  // "rxe0 port 1"
};

// "::ffff:10.77.0.1"
std::string text(const abi::Gid& gid);
// "RoCE v2"
const char* kind(std::uint32_t gid_type);
// Bytes of a packet for a code from 1 to 5.
constexpr std::uint32_t mtu_bytes(std::uint32_t code) { return 128U << code; }

// How far an address reaches; the larger the better.
int reach(const abi::Gid& gid, std::uint32_t gid_type);

// What COLLECTIVES_VERBS_DEVICE says: "mlx5_0", "mlx5_0:1" or "mlx5_0:1:3" (device, port, GID index).
struct Wish {
    std::string device;
    int port = -1;       // -1: any
    int gid_index = -1;  // -1: the one that reaches farthest
};
// Throws Error(transport_unavailable) for another form.
Wish parse_wish(const std::string& text);
// Of the environment; an empty device if it says nothing.
Wish wish();

// Every port of every device, and for each that cannot be used the reason. Throws
// Error(transport_unavailable) if libibverbs is not there.
std::vector<NetworkPort> survey();

// The port for that rank: the one that is wished for, or one of those near the caller's core; ranks take
// turns among ports of the same distance. Throws Error(transport_unavailable), which says what is wrong with
// each port, if there is none.
Port choose_port(int rank);

}  // namespace collectives::verbs
