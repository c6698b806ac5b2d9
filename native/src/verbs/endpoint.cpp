#include "verbs/endpoint.hpp"

#include <algorithm>
#include <bit>

#include "base/error.hpp"
#include "verbs/grant.hpp"
#include "verbs/ring.hpp"

namespace collectives::verbs {

namespace {

constexpr std::uint32_t most_packets = 1 << 24;  // packets and queue pairs have numbers of 24 bits
constexpr std::uint64_t records_in_ring = 4;     // so that the one after the end of the ring fits, too

}  // namespace

std::string Endpoint::port_name() const {
    std::string name;
    for (const char letter : device) {
        if (letter == '\0') break;
        if (letter > ' ' && letter < '\x7f') name += letter;
    }
    return name + " port " + std::to_string(port);
}

Endpoint describe(const Port& port) {
    Endpoint end;
    end.gid = port.gid;
    end.lid = port.lid;
    end.layer = port.layer;
    end.mtu = static_cast<std::uint8_t>(port.mtu);
    end.port = port.number;
    end.gid_type = static_cast<std::uint8_t>(port.gid_type);
    std::copy_n(port.device.begin(), std::min(port.device.size(), end.device.size()), end.device.begin());
    return end;
}

void check(const Endpoint& theirs, const Port& own, std::size_t longest, const std::string& peer) {
    if (theirs.layer != own.layer) {
        const auto name = [](std::uint8_t layer) {
            return layer == abi::layer_infiniband ? "InfiniBand"
                   : layer == abi::layer_ethernet ? "Ethernet"
                                                  : "unknown";
        };
        throw Error(ErrorKind::transport_unavailable,
                    own.name() + " is of " + name(own.layer) + ", and " + theirs.port_name() + " of " + peer +
                        " of " + name(theirs.layer) +
                        ": choose ports of one kind by COLLECTIVES_VERBS_DEVICE");
    }
    // Of Ethernet's addresses, those of two kinds do not reach each other; packets would get lost without an
    // error.
    const auto kind_of = [](const abi::Gid& gid, std::uint32_t type) {
        return std::string(kind(type)) + (is_ipv4(gid) ? " with an IPv4 address" : " with an IPv6 address");
    };
    const std::string ours = kind_of(own.gid, own.gid_type);
    const std::string other = kind_of(theirs.gid, theirs.gid_type);
    if (own.layer == abi::layer_ethernet && ours != other) {
        throw Error(ErrorKind::transport_unavailable,
                    own.name() + " uses " + ours + " (" + text(own.gid) + "), and " + theirs.port_name() +
                        " of " + peer + " " + other + " (" + text(theirs.gid) +
                        "): choose addresses of one kind by COLLECTIVES_VERBS_DEVICE=device:port:GID index");
    }
    const std::uint64_t size = theirs.ring_units;
    const bool fits = std::has_single_bit(size) && size >= records_in_ring * units(longest) &&
                      size <= Immediate::space_range / 2;
    const bool is_in_memory =
        theirs.ring_address % unit_bytes == 0 && theirs.ring_address > 0 &&
        theirs.ring_address <= ~std::uint64_t{0} - size * unit_bytes - grants_bytes(theirs.slots);
    const bool has_numbers = theirs.queue_pair < most_packets && theirs.first_packet < most_packets &&
                             theirs.mtu >= 1 && theirs.mtu <= 5 && theirs.port >= 1;
    const bool has_slots = theirs.slots > 0 && theirs.slots <= Immediate::slot_range / 2;
    const bool has_address = theirs.layer == abi::layer_infiniband || theirs.gid != abi::Gid{};
    if (!fits || !is_in_memory || !has_numbers || !has_slots || !has_address) {
        throw Error(ErrorKind::transport_unavailable, peer + " made an offer for RDMA that is not possible");
    }
}

}  // namespace collectives::verbs
