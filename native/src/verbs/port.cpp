#include "verbs/port.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "verbs/device.hpp"
#include "verbs/library.hpp"
#include "verbs/nearness.hpp"

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

// Queue pairs have a byte for the index, although tables may be longer.
constexpr int largest_gid_index = 255;

// The address of a port: the one of that index, or the best one.
std::optional<abi::GidEntry> find_gid(const Device& device, std::uint8_t port, int n_gids, int wanted) {
    std::optional<abi::GidEntry> best;
    for (int i = 0; i < std::min(n_gids, largest_gid_index + 1); ++i) {
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

// The wish that names this port; null if none does.
const Wish* wish_for(const std::vector<Wish>& wishes, const std::string& device, int port) {
    const auto is_meant = [&](const Wish& wish) {
        return wish.device == device && (wish.port < 0 || port < 0 || wish.port == port);
    };
    const auto place = std::ranges::find_if(wishes, is_meant);
    return place == wishes.end() ? nullptr : &*place;
}

std::vector<Candidate> look_at_all(const std::vector<Wish>& wishes) {
    std::vector<Candidate> found;
    for (const std::string& name : device_names()) {
        try {
            const std::shared_ptr<Device> device = Device::open(name);
            for (int number = 1; number <= device->n_ports(); ++number) {
                const Wish* const wish = wish_for(wishes, name, number);
                found.push_back(look_at(*device, static_cast<std::uint8_t>(number),
                                        wish == nullptr ? -1 : wish->gid_index));
                found.back().left_out = wish == nullptr && !wishes.empty();
            }
        } catch (const Error& error) {
            Candidate candidate;
            candidate.port.device = name;
            candidate.state = "unknown";
            candidate.problem = error.what();
            candidate.left_out = !wishes.empty() && wish_for(wishes, name, -1) == nullptr;
            found.push_back(std::move(candidate));
        }
    }
    return found;
}

// The ports that can be used. Throws Error(transport_unavailable) if there are none. `leaves_out`: what
// leaves out the others.
std::vector<Port> usable_ports(const std::vector<Wish>& wishes, const std::string& leaves_out) {
    std::vector<Port> usable;
    std::string problems;
    std::string others;
    for (const Candidate& one : look_at_all(wishes)) {
        const std::string name = one.port.name();
        if (one.left_out) {
            others += (others.empty() ? "" : ", ") + name;
        } else if (one.problem.empty()) {
            usable.push_back(one.port);
        } else {
            problems += (problems.empty() ? "" : "; ") + name + ": " + one.problem;
        }
    }
    if (!usable.empty()) return usable;
    if (!others.empty()) others = leaves_out + " leaves out " + others;
    if (problems.empty() && others.empty()) problems = "this machine has no RDMA device";
    throw Error(ErrorKind::transport_unavailable, "there is no usable RDMA port: " + problems +
                                                      (problems.empty() || others.empty() ? "" : "; ") +
                                                      others);
}

int number_in(std::string_view text, const std::string& all, int largest = std::numeric_limits<int>::max()) {
    int value = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && value > largest) {
        throw Error(ErrorKind::transport_unavailable,
                    std::string(variable) + " is '" + all + "': a queue pair can use a GID index up to " +
                        std::to_string(largest) + ", not " + std::to_string(value));
    }
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

bool is_ipv4(const abi::Gid& gid) {
    static constexpr abi::Gid mapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return std::equal(gid.begin(), gid.begin() + 12, mapped.begin());
}

int reach(const abi::Gid& gid, std::uint32_t gid_type) {
    const bool is_local = gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
    return (gid_type == abi::gid_roce_v1 ? 0 : 3) + (is_ipv4(gid) ? 2 : is_local ? 0 : 1);
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
    if (second != std::string::npos)
        wish.gid_index = number_in(all.substr(second + 1), text, largest_gid_index);
    return wish;
}

std::vector<Wish> parse_wishes(const std::string& text) {
    std::vector<Wish> found;
    for (std::size_t begin = 0; begin <= text.size() && !text.empty();) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        found.push_back(parse_wish(text.substr(begin, end - begin)));
        begin = end + 1;
    }
    return found;
}

std::vector<Wish> wishes() {
    const char* const set = std::getenv(variable);
    return set == nullptr ? std::vector<Wish>() : parse_wishes(set);
}

std::vector<NetworkPort> survey() {
    std::vector<NetworkPort> ports;
    const std::vector<int> near = near_nodes();
    for (const Candidate& one : look_at_all(wishes())) {
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
                         .is_near = is_near(port.numa_node, near),
                         .problem = one.problem,
                         .left_out = one.left_out});
    }
    return ports;
}

Port find_port(const Wish& wish) { return usable_ports({wish}, "the choice of " + wish.device).front(); }

std::vector<Port> in_order(std::vector<Port> ports, const std::vector<int>& nodes, int rank) {
    const auto is_of_near = [&](const Port& port) { return is_near(port.numa_node, nodes); };
    const auto far = std::stable_partition(ports.begin(), ports.end(), is_of_near);
    const auto turn = [rank](auto begin, auto end) {
        if (begin != end) std::rotate(begin, begin + rank % (end - begin), end);
    };
    turn(ports.begin(), far);
    turn(far, ports.end());
    return ports;
}

Port choose_port(int rank) {
    std::vector<Port> usable = usable_ports(wishes(), variable);
    // Ports of one kind: peers choose in the same way, and those of two kinds do not reach each other.
    const std::uint8_t layer = usable.front().layer;
    std::erase_if(usable, [layer](const Port& port) { return port.layer != layer; });
    return in_order(std::move(usable), near_nodes(), rank).front();
}

}  // namespace collectives::verbs
