// Ranks that lose their paths to each other at the same time: all of them raise one error.
#include <doctest/doctest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <filesystem>
#include <set>
#include <string>
#include <thread>

#include "groups.hpp"

using namespace collectives;
using namespace collectives::testing;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t many = 1 << 18;

std::uint64_t bytes_carried(int fd) {
    tcp_info info{};
    socklen_t size = sizeof(info);
    if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
    return info.tcpi_bytes_acked + info.tcpi_bytes_received;
}

// Ends the connections of this process that have carried data. Those of the control plane have carried
// little.
int cut_data_connections() {
    std::vector<int> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        const int fd = std::stoi(entry.path().filename());
        if (bytes_carried(fd) > (1 << 20)) found.push_back(fd);
    }
    for (const int fd : found) ::shutdown(fd, SHUT_RDWR);
    return static_cast<int>(found.size());
}

}  // namespace

TEST_CASE("ranks that lose their paths to each other at the same time raise one error") {
    for (int round = 0; round < 4; ++round) {
        World world(3, "tcp");
        std::vector<std::optional<Error>> errors(3);
        std::jthread cut([] {
            std::this_thread::sleep_for(300ms);
            CHECK(cut_data_connections() >= 6);
        });
        world.each([&](int rank, Group& group) {
            errors[static_cast<std::size_t>(rank)] = error_of([&] {
                std::vector<float> data(many, 1.0F);
                const auto operation = sum_of_floats(ring(rank, 3), many);
                while (true) group.run(operation, raw(data), raw(data), 30.0, {});
            });
        });
        std::set<std::vector<int>> named;
        int reported = 0;
        for (const auto& error : errors) {
            REQUIRE(error.has_value());
            CAPTURE(error->what());
            CHECK(error->kind() == ErrorKind::peer_lost);
            named.insert(error->ranks());
            reported += std::string(error->what()).find("has reported it") != std::string::npos ? 1 : 0;
        }
        CHECK(named.size() == 1);
        CHECK(reported == 2);  // by the third
    }
}
