#include "verbs/nearness.hpp"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>

namespace collectives::verbs {

namespace {

constexpr int most_cores = CPU_SETSIZE;

// Reads a number from the beginning of `text`, and removes it there.
std::optional<int> take_number(std::string_view& text) {
    int value = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || value < 0) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return value;
}

bool take(std::string_view& text, char letter) {
    if (!text.starts_with(letter)) return false;
    text.remove_prefix(1);
    return true;
}

}  // namespace

std::optional<std::vector<int>> parse_cores(std::string_view list) {
    std::vector<int> cores;
    if (list.empty()) return cores;  // a node with memory only
    do {
        const std::optional<int> first = take_number(list);
        const std::optional<int> last = take(list, '-') ? take_number(list) : first;
        if (!first || !last || *last < *first || *last - *first >= most_cores) return std::nullopt;
        for (int core = *first; core <= *last; ++core) cores.push_back(core);
    } while (take(list, ','));
    if (!list.empty()) return std::nullopt;
    return cores;
}

std::vector<int> nodes_of(const std::vector<int>& cores, const std::filesystem::path& folder) {
    std::vector<int> nodes;
    std::error_code error;
    for (std::filesystem::directory_iterator place(folder, error), end; !error && place != end;
         place.increment(error)) {
        const std::string name = place->path().filename().string();
        std::string_view number(name);
        if (!number.starts_with("node")) continue;
        number.remove_prefix(4);
        const std::optional<int> node = take_number(number);
        if (!node || !number.empty()) continue;
        std::string list;
        std::getline(std::ifstream(place->path() / "cpulist"), list);
        const auto all = parse_cores(list);
        const auto is_ours = [&](int core) { return std::ranges::find(cores, core) != cores.end(); };
        if (all && std::ranges::any_of(*all, is_ours)) nodes.push_back(*node);
    }
    std::ranges::sort(nodes);
    return nodes;
}

std::vector<int> near_nodes() {
    cpu_set_t allowed;
    if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return {};
    std::vector<int> cores;
    for (int core = 0; core < most_cores; ++core) {
        if (CPU_ISSET(static_cast<std::size_t>(core), &allowed)) cores.push_back(core);
    }
    return nodes_of(cores, "/sys/devices/system/node");
}

bool is_near(int node, const std::vector<int>& nodes) {
    return node < 0 || nodes.empty() || std::ranges::find(nodes, node) != nodes.end();
}

}  // namespace collectives::verbs
