#include "inproc/ports.hpp"

#include <unistd.h>

#include <map>
#include <mutex>

namespace collectives::ports {

namespace {

struct Table {
    std::mutex mutex;
    std::map<std::string, std::shared_ptr<Arena>> arenas;
    std::uint64_t opened = 0;
};

Table& table() {
    static Table instance;
    return instance;
}

}  // namespace

std::string open(std::shared_ptr<Arena> arena) {
    Table& ports = table();
    const std::lock_guard lock(ports.mutex);
    const std::string address = std::to_string(::getpid()) + "." + std::to_string(ports.opened++);
    ports.arenas.emplace(address, std::move(arena));
    return address;
}

void close(const std::string& address) {
    Table& ports = table();
    const std::lock_guard lock(ports.mutex);
    ports.arenas.erase(address);
}

std::shared_ptr<Arena> find(const std::string& address) {
    Table& ports = table();
    const std::lock_guard lock(ports.mutex);
    const auto place = ports.arenas.find(address);
    return place == ports.arenas.end() ? nullptr : place->second;
}

}  // namespace collectives::ports
