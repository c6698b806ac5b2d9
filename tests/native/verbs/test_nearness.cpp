// Which ports are near a rank: decided from files as the kernel writes them, since few machines have several
// NUMA nodes.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "verbs/nearness.hpp"
#include "verbs/port.hpp"

using namespace collectives::verbs;

namespace {

// A folder in which nodes are described, removed at the end.
struct Nodes {
    Nodes() {
        std::filesystem::create_directories(folder);
        add("node0", "0-3,8-11\n");
        add("node1", "4-7,12-15\n");
        add("node2", "\n");          // memory only
        add("node10", "rubbish\n");  // what nobody can read counts as no core
        add("power", "0-3\n");
    }
    Nodes(const Nodes&) = delete;
    Nodes& operator=(const Nodes&) = delete;
    ~Nodes() { std::filesystem::remove_all(folder); }

    void add(const std::string& name, const std::string& list) const {
        std::filesystem::create_directories(folder / name);
        std::ofstream(folder / name / "cpulist") << list;
    }

    std::filesystem::path folder =
        std::filesystem::temp_directory_path() / ("nodes-" + std::to_string(::getpid()));
};

std::vector<std::string> names(const std::vector<Port>& ports) {
    std::vector<std::string> found;
    for (const Port& port : ports) found.push_back(port.device);
    return found;
}

Port port_on(const std::string& device, int node) {
    Port port;
    port.device = device;
    port.numa_node = node;
    return port;
}

}  // namespace

TEST_CASE("lists of cores are read as the kernel writes them") {
    CHECK(parse_cores("0-2,8") == std::vector{0, 1, 2, 8});
    CHECK(parse_cores("5") == std::vector{5});
    CHECK(parse_cores("") == std::vector<int>{});
    for (const char* const wrong : {"a", "1-", "3-1", "1,", ",1", "1 2", "0-99999999", "-1"}) {
        CHECK(!parse_cores(wrong).has_value());
    }
}

TEST_CASE("the nodes of a rank are those of the cores on which it may run") {
    const Nodes nodes;
    CHECK(nodes_of({9}, nodes.folder) == std::vector{0});
    CHECK(nodes_of({4, 15}, nodes.folder) == std::vector{1});
    CHECK(nodes_of({0, 5}, nodes.folder) == std::vector{0, 1});
    CHECK(nodes_of({77}, nodes.folder).empty());
    CHECK(nodes_of({0}, nodes.folder / "none").empty());
}

TEST_CASE("near ports come first, and ranks take turns among those that are equally near") {
    const std::vector<Port> ports{port_on("far0", 1), port_on("near0", 0), port_on("far1", 1),
                                  port_on("near1", 0)};
    CHECK(names(in_order(ports, {0}, 0)) == std::vector<std::string>{"near0", "near1", "far0", "far1"});
    CHECK(names(in_order(ports, {0}, 1)) == std::vector<std::string>{"near1", "near0", "far1", "far0"});
    CHECK(names(in_order(ports, {1}, 2)) == std::vector<std::string>{"far0", "far1", "near0", "near1"});
    // Where nothing is known, everything is near.
    CHECK(names(in_order(ports, {}, 2)).front() == "far1");
    CHECK(in_order({port_on("unknown", -1)}, {0}, 3).size() == 1);
    CHECK(is_near(-1, {3}));
    CHECK(in_order({}, {0}, 5).empty());
}
