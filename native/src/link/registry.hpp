// The transports that this process knows, by name.
//
// Invariant: a name stands for one transport, which is never removed. Calls may come from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/export.hpp"
#include "link/transport.hpp"

namespace collectives {

// A port of a network device, as far as this machine tells.
struct NetworkPort {
    std::string device;
    int port = 1;
    std::string layer;  // "Ethernet", "InfiniBand"
    std::string state;  // "active", "down"
    std::string address{};
    std::string address_kind{};  // "RoCE v2"
    int address_index = -1;      // in the port's table
    std::uint32_t mtu = 0;       // bytes; 0 if unknown
    int numa_node = -1;          // of the device; -1 if unknown
    bool is_near = true;         // to the cores on which the calling thread may run
    std::string problem{};       // the reason why it cannot be used; empty if it can
    bool left_out = false;       // the user has chosen other ports
};

struct TransportFactory {
    std::function<std::unique_ptr<Transport>(const Setup&)> make;
    // The reason why this process has no room for a group of `ranks` ranks; nothing if it has.
    std::function<std::optional<std::string>(int ranks, std::size_t segment)> why_no_room;
    // The ports that the transport finds here. Throws Error(transport_unavailable) if it cannot look for any.
    std::function<std::vector<NetworkPort>()> ports{};
};

// Throws Error(invalid) if the name stands for another transport already.
COLLECTIVES_API void register_transport(const std::string& name, TransportFactory factory);
// In alphabetical order.
COLLECTIVES_API std::vector<std::string> registered_transports();
// All throw Error(transport_unavailable), which lists the known names, for an unknown name.
COLLECTIVES_API std::unique_ptr<Transport> make_transport(const std::string& name, const Setup& setup);
COLLECTIVES_API std::optional<std::string> why_no_room(const std::string& name, int ranks,
                                                       std::size_t segment);
// Empty for a transport that has no ports of its own.
COLLECTIVES_API std::vector<NetworkPort> network_ports(const std::string& name);

// Registers a transport when the shared object that defines it is loaded. An error cannot be thrown at that
// time; it is kept for take_refused_transports.
struct COLLECTIVES_API RegisteredTransport {
    RegisteredTransport(const char* name, TransportFactory factory) noexcept;
};

// The reasons why transports could not be registered since the last call.
std::vector<std::string> take_refused_transports();

}  // namespace collectives
