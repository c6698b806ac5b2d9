#include "link/registry.hpp"

#include <map>
#include <mutex>
#include <utility>

#include "base/error.hpp"

namespace collectives {

namespace {

struct Table {
    std::mutex mutex;
    std::map<std::string, TransportFactory> factories;
    std::vector<std::string> refused;
};

Table& table() {
    static Table instance;
    return instance;
}

TransportFactory factory_of(const std::string& name) {
    std::string known;
    {
        const std::lock_guard lock(table().mutex);
        const auto place = table().factories.find(name);
        if (place != table().factories.end()) return place->second;
        for (const auto& [other, factory] : table().factories) known += (known.empty() ? "" : ", ") + other;
    }
    throw Error(ErrorKind::transport_unavailable, "the engine has no links of transport '" + name +
                                                      "'; it has those of " +
                                                      (known.empty() ? "none" : known));
}

}  // namespace

void register_transport(const std::string& name, TransportFactory factory) {
    const std::lock_guard lock(table().mutex);
    if (!table().factories.emplace(name, std::move(factory)).second) {
        throw Error(ErrorKind::invalid, "there is a transport '" + name + "' already");
    }
}

RegisteredTransport::RegisteredTransport(const char* name, TransportFactory factory) noexcept {
    try {
        register_transport(name, std::move(factory));
    } catch (const Error& error) {
        const std::lock_guard lock(table().mutex);
        table().refused.emplace_back(error.what());
    }
}

std::vector<std::string> take_refused_transports() {
    const std::lock_guard lock(table().mutex);
    return std::exchange(table().refused, {});
}

std::vector<std::string> registered_transports() {
    const std::lock_guard lock(table().mutex);
    std::vector<std::string> names;
    for (const auto& [name, factory] : table().factories) names.push_back(name);
    return names;
}

std::unique_ptr<Transport> make_transport(const std::string& name, const Setup& setup) {
    return factory_of(name).make(setup);
}

std::optional<std::string> why_no_room(const std::string& name, int ranks, std::size_t segment) {
    const TransportFactory factory = factory_of(name);
    return factory.why_no_room ? factory.why_no_room(ranks, segment) : std::nullopt;
}

std::vector<NetworkPort> network_ports(const std::string& name) {
    const TransportFactory factory = factory_of(name);
    return factory.ports ? factory.ports() : std::vector<NetworkPort>();
}

}  // namespace collectives
