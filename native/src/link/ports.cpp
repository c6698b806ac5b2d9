#include "link/ports.hpp"

#include <unistd.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

namespace collectives::ports {

namespace {

struct Table {
    std::mutex mutex;
    std::map<std::string, std::pair<std::string, Offer>> offers;  // by address: the transport and its offer
    std::uint64_t opened = 0;
};

Table& table() {
    static Table instance;
    return instance;
}

}  // namespace

std::string open(const std::string& transport, Offer offer) {
    Table& ports = table();
    const std::lock_guard lock(ports.mutex);
    const std::string address = std::to_string(::getpid()) + "." + std::to_string(ports.opened++);
    ports.offers.emplace(address, std::pair(transport, std::move(offer)));
    return address;
}

void close(const std::string& address) {
    Table& ports = table();
    const std::lock_guard lock(ports.mutex);
    ports.offers.erase(address);
}

std::optional<PeerOffer> find(const std::string& transport, const std::string& address) {
    Table& ports = table();
    const std::lock_guard lock(ports.mutex);
    const auto place = ports.offers.find(address);
    if (place == ports.offers.end() || place->second.first != transport) return std::nullopt;
    const Offer& offer = place->second.second;
    return PeerOffer{offer.version, offer.bytes, {}, offer.object};
}

}  // namespace collectives::ports
