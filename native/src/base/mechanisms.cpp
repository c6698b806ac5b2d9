#include "base/mechanisms.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

namespace collectives {

namespace {

// The names, in the order of Mechanism.
constexpr std::array<std::string_view, 12> names{"board",      "by-core",   "pool",           "pool-copies",
                                                 "relay",      "multicast", "spread",         "cma",
                                                 "joint-copy", "streaming", "line-ownership", "places"};

}  // namespace

Mechanisms Mechanisms::from_environment() {
    Mechanisms mechanisms;
    const char* const named = std::getenv("COLLECTIVES_WITHOUT");
    std::string_view left = named == nullptr ? "" : named;
    while (!left.empty()) {
        const std::string_view name = left.substr(0, left.find(','));
        left.remove_prefix(std::min(name.size() + 1, left.size()));
        const auto* const found = std::ranges::find(names, name);
        if (found == names.end()) continue;
        mechanisms.off_ |= 1U << static_cast<unsigned>(found - names.begin());
    }
    return mechanisms;
}

bool uses(Mechanism mechanism) {
    static const Mechanisms of_process = Mechanisms::from_environment();
    return of_process.has(mechanism);
}

}  // namespace collectives
