#include "engine/registry.hpp"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace collectives {

namespace {

struct Entry {
    std::string name;
    EngineOrder order;
    EngineFactory make;
};

struct Registry {
    std::mutex mutex;
    std::vector<Entry> entries;  // by order
};

// A static in a function, because engines register before `main`, in an unknown order.
Registry& registry() {
    static Registry the_one;
    return the_one;
}

}  // namespace

void register_engine(const char* name, EngineOrder order, EngineFactory make) {
    const std::lock_guard lock(registry().mutex);
    std::vector<Entry>& entries = registry().entries;
    if (std::ranges::any_of(entries, [&](const Entry& entry) { return entry.name == name; })) {
        throw Error(ErrorKind::invalid, std::string("there is an engine ") + name + " already");
    }
    // Sorted, because all ranks must ask engines in the same order, whatever was loaded first.
    const auto place = std::ranges::find_if(entries, [&](const Entry& entry) {
        return std::pair(entry.order, std::string_view(entry.name)) >
               std::pair(order, std::string_view(name));
    });
    entries.insert(place, {name, order, std::move(make)});
}

Engines make_engines(Surroundings& surroundings) {
    const std::lock_guard lock(registry().mutex);
    Engines engines;
    for (const Entry& entry : registry().entries) engines.push_back(entry.make(surroundings));
    return engines;
}

}  // namespace collectives
