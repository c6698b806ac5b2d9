// The ports of this machine's RDMA devices, and the choice of one for a rank.
//
// Invariant: a port is used only if it is active and has an address (GID). Its address is the one that
// reaches farthest: RoCE v2, which routers forward, before RoCE v1; an IPv4 address before one of IPv6, and
// both before one that is valid on a single link only.
// Which port reaches a peer is decided by both ranks alike, from what they have published
// (transports/verbs.py).
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
// Whether it is an IPv4 address, written as one of IPv6.
bool is_ipv4(const abi::Gid& gid);
// "RoCE v2"
const char* kind(std::uint32_t gid_type);
// Bytes of a packet for a code from 1 to 5.
constexpr std::uint32_t mtu_bytes(std::uint32_t code) { return 128U << code; }

// How far an address reaches; the larger the better.
int reach(const abi::Gid& gid, std::uint32_t gid_type);

// A port that is asked for: "mlx5_0", "mlx5_0:1" or "mlx5_0:1:3" (device, port, GID index).
struct Wish {
    std::string device;
    int port = -1;       // -1: any
    int gid_index = -1;  // -1: the one that reaches farthest
};
// Throws Error(transport_unavailable) for another form.
Wish parse_wish(const std::string& text);
// What COLLECTIVES_VERBS_DEVICE says: some of these, with commas between them; none if it says nothing.
std::vector<Wish> parse_wishes(const std::string& text);
std::vector<Wish> wishes();

// Every port of every device, and for each that cannot be used the reason. Throws
// Error(transport_unavailable) if libibverbs is not there.
std::vector<NetworkPort> survey();

// The port that is asked for. Throws Error(transport_unavailable), which says what is wrong with it.
Port find_port(const Wish& wish);

// In the order in which a rank prefers them: ports near its cores come first, and ranks take turns among
// ports that are equally near. `nodes`: the NUMA nodes that are near.
std::vector<Port> in_order(std::vector<Port> ports, const std::vector<int>& nodes, int rank);

// The port that a rank uses for peers of which nothing is known: the first one in that order. Throws
// Error(transport_unavailable), which says what is wrong with each port, if there is none.
Port choose_port(int rank);

}  // namespace collectives::verbs
