#include "shm/tuning.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ranges>
#include <string_view>

namespace collectives::tuning {

namespace {

// In the order of Mechanism.
constexpr std::array<std::string_view, 5> names{"cma", "joint-copy", "streaming", "line-ownership", "places"};

}  // namespace

bool uses(Mechanism mechanism) {
    static const std::array<bool, names.size()> used = [] {
        std::array<bool, names.size()> all{};
        all.fill(true);
        const char* const without = std::getenv("COLLECTIVES_WITHOUT");
        for (const auto part : std::views::split(std::string_view(without == nullptr ? "" : without), ',')) {
            const auto* const name = std::ranges::find(names, std::string_view(part.begin(), part.end()));
            if (name != names.end()) all[static_cast<std::size_t>(name - names.begin())] = false;
        }
        return all;
    }();
    return used[static_cast<std::size_t>(mechanism)];
}

}  // namespace collectives::tuning
