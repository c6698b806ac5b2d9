// Which NUMA nodes are near the calling thread: those of the cores on which it may run.
//
// Invariant: where the kernel tells nothing, everything counts as near.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace collectives::verbs {

// The numbers in a list of the kernel's, such as "0-3,8"; nothing if it is no such list.
std::optional<std::vector<int>> parse_cores(std::string_view list);

// The NUMA nodes that have one of these cores, in ascending order. `folder`: where the kernel describes
// nodes.
std::vector<int> nodes_of(const std::vector<int>& cores, const std::filesystem::path& folder);

// The NUMA nodes of the cores on which the calling thread may run; empty if they are not known.
std::vector<int> near_nodes();

// Whether a device on that node is near. `node`: -1 if it is not known.
bool is_near(int node, const std::vector<int>& nodes);

}  // namespace collectives::verbs
