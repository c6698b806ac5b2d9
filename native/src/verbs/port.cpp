#include "verbs/port.hpp"

#include <arpa/inet.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "verbs/device.hpp"
#include "verbs/library.hpp"

namespace collectives::verbs {

namespace {

constexpr const char* variable = "COLLECTIVES_VERBS_DEVICE";

// A port, or why it cannot be used.
struct Candidate {
    Port port;
    std::string state;
    std::string problem;
    bool left_out = false;  // the user has chosen other ports
};

const char* state_name(std::uint32_t state) {
    switch (state) {
        case abi::port_down:
            return "down";
        case abi::port_initialized:
            return "initialized";
        case abi::port_armed:
            return "armed";
        case abi::port_active:
            return "active";
        default:
            return "unknown";
    }
}

const char* layer_name(std::uint8_t layer) {
    return layer == abi::layer_ethernet     ? "Ethernet"
           : layer == abi::layer_infiniband ? "InfiniBand"
                                            : "unknown";
}

int numa_node_of(const std::string& device) {
    int node = -1;
    std::ifstream("/sys/class/infiniband/" + device + "/device/numa_node") >> node;
    return node;
}

int numa_node_here() {
    unsigned node = 0;
    return ::getcpu(nullptr, &node) == 0 ? static_cast<int>(node) : -1;
}

// The address of a port: the one of that index, or the best one.
std::optional<abi::GidEntry> find_gid(const Device& device, std::uint8_t port, int n_gids, int wanted) {
    std::optional<abi::GidEntry> best;
    for (int i = 0; i < n_gids; ++i) {
        if (wanted >= 0 && i != wanted) continue;
        const std::optional<abi::GidEntry> entry = device.gid(port, static_cast<std::uint32_t>(i));
        if (entry && (!best || reach(entry->gid, entry->type) > reach(best->gid, best->type))) best = entry;
    }
    return best;
}

Candidate look_at(const Device& device, std::uint8_t number, int gid_index) {
    Candidate found;
    Port& port = found.port;
    port.device = device.name();
    port.number = number;
    port.numa_node = numa_node_of(device.name());
    abi::PortAttributes attributes;
    if (const int error = library().query_port(device.context(), number, &attributes); error != 0) {
        found.state = "unknown";
        found.problem = "the kernel tells nothing about it: " + errno_text(error);
        return found;
    }
    port.layer = attributes.link_layer;
    port.lid = attributes.lid;
    port.mtu = attributes.active_mtu;
    port.longest_message = attributes.max_message;
    found.state = state_name(attributes.state);
    const std::optional<abi::GidEntry> gid = find_gid(device, number, attributes.n_gids, gid_index);
    if (gid) {
        port.gid = gid->gid;
        port.gid_index = gid->index;
        port.gid_type = gid->type;
    }
    if (attributes.state != abi::port_active) {
        found.problem = "it is " + found.state + ": " +
                        (port.layer == abi::layer_infiniband
                             ? "check the cable, and that a subnet manager runs"
                             : "check the cable, and set its network interface up (ip link set ... up)");
    } else if (!gid) {
        found.problem = gid_index < 0 ? "it has no address: give its network interface an IP address"
                                      : "it has no address (GID) of index " + std::to_string(gid_index) +
                                            "; `ibv_devinfo -v` lists them";
    } else if (port.mtu < 1 || port.mtu > 5) {
        found.problem = "it reports an unknown MTU";
    }
    return found;
}

std::vector<Candidate> look_at_all(const Wish& wish) {
    std::vector<Candidate> found;
    for (const std::string& name : device_names()) {
        const bool is_named = wish.device.empty() || name == wish.device;
        try {
            const std::shared_ptr<Device> device = Device::open(name);
            for (int number = 1; number <= device->n_ports(); ++number) {
                const bool is_wished = is_named && (wish.port < 0 || number == wish.port);
                found.push_back(
                    look_at(*device, static_cast<std::uint8_t>(number), is_wished ? wish.gid_index : -1));
                found.back().left_out = !is_wished;
            }
        } catch (const Error& error) {
            Candidate candidate;
            candidate.port.device = name;
            candidate.state = "unknown";
            candidate.problem = error.what();
            candidate.left_out = !is_named;
            found.push_back(std::move(candidate));
        }
    }
    return found;
}

int number_in(std::string_view text, const std::string& all) {
    int value = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0) {
        throw Error(ErrorKind::transport_unavailable,
                    std::string(variable) + " is '" + all +
                        "', and must be a device, device:port or device:port:GID index, such as mlx5_0:1:3");
    }
    return value;
}

}  // namespace

std::string Port::name() const { return device + " port " + std::to_string(number); }

std::string text(const abi::Gid& gid) {
    std::array<char, INET6_ADDRSTRLEN> form{};
    ::inet_ntop(AF_INET6, gid.data(), form.data(), form.size());
    return form.data();
}

const char* kind(std::uint32_t gid_type) {
    return gid_type == abi::gid_roce_v2 ? "RoCE v2" : gid_type == abi::gid_roce_v1 ? "RoCE v1" : "InfiniBand";
}

int reach(const abi::Gid& gid, std::uint32_t gid_type) {
    static constexpr abi::Gid mapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    const bool is_ipv4 = std::equal(gid.begin(), gid.begin() + 12, mapped.begin());
    const bool is_local = gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
    return (gid_type == abi::gid_roce_v1 ? 0 : 3) + (is_ipv4 ? 2 : is_local ? 0 : 1);
}

Wish parse_wish(const std::string& text) {
    Wish wish;
    const std::size_t first = text.find(':');
    wish.device = text.substr(0, first);
    if (first == std::string::npos) return wish;
    const std::size_t second = text.find(':', first + 1);
    const std::string_view all(text);
    wish.port =
        number_in(all.substr(first + 1, second == std::string::npos ? second : second - first - 1), text);
    if (second != std::string::npos) wish.gid_index = number_in(all.substr(second + 1), text);
    return wish;
}

Wish wish() {
    const char* const set = std::getenv(variable);
    return set == nullptr ? Wish() : parse_wish(set);
}

std::vector<NetworkPort> survey() {
    std::vector<NetworkPort> ports;
    for (const Candidate& one : look_at_all(wish())) {
        const Port& port = one.port;
        const bool has_gid = port.gid != abi::Gid{};
        ports.push_back({.device = port.device,
                         .port = port.number,
                         .layer = layer_name(port.layer),
                         .state = one.state,
                         .address = has_gid ? text(port.gid) : "",
                         .address_kind = has_gid ? kind(port.gid_type) : "",
                         .address_index = has_gid ? static_cast<int>(port.gid_index) : -1,
                         .mtu = port.mtu >= 1 && port.mtu <= 5 ? mtu_bytes(port.mtu) : 0,
                         .numa_node = port.numa_node,
                         .problem = one.problem,
                         .left_out = one.left_out});
    }
    return ports;
}

Port choose_port(int rank) {
    const int here = numa_node_here();
    std::vector<Port> usable;
    std::string problems;
    std::string others;
    for (const Candidate& one : look_at_all(wish())) {
        const std::string name = one.port.name();
        if (one.left_out) {
            others += (others.empty() ? "" : ", ") + name;
        } else if (one.problem.empty()) {
            usable.push_back(one.port);
        } else {
            problems += (problems.empty() ? "" : "; ") + name + ": " + one.problem;
        }
    }
    if (usable.empty()) {
        if (!others.empty()) others = std::string(variable) + " leaves out " + others;
        if (problems.empty() && others.empty()) problems = "this machine has no RDMA device";
        throw Error(ErrorKind::transport_unavailable, "there is no usable RDMA port: " + problems +
                                                          (problems.empty() || others.empty() ? "" : "; ") +
                                                          others);
    }
    const auto is_far = [here](const Port& port) {
        return port.numa_node >= 0 && here >= 0 && port.numa_node != here;
    };
    // Ports of one kind: peers choose in the same way, and those of two kinds do not reach each other.
    const std::uint8_t layer = usable.front().layer;
    std::erase_if(usable, [layer](const Port& port) { return port.layer != layer; });
    if (std::ranges::any_of(usable, [&](const Port& port) { return !is_far(port); })) {
        std::erase_if(usable, is_far);
    }
    return usable[static_cast<std::size_t>(rank) % usable.size()];
}

}  // namespace collectives::verbs
