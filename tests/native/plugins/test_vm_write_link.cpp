// The link of examples/plugins/link_vm_write between threads, compiled into the test so that sanitizers see
// it.
#include <atomic>
#include <optional>

#include "groups.hpp"

namespace vm_write {
extern std::atomic<std::uint64_t> payload_written;
}

using namespace collectives;
using namespace collectives::testing;

namespace {

using Make = std::shared_ptr<const Program> (*)(int, int);

void check_sum(World& world, Make make, std::size_t n) {
    const int size = static_cast<int>(world.ranks.size());
    world.each([&](int rank, Group& group) {
        std::vector<float> x = values(rank, n);
        std::vector<float> y(n);
        group.run(sum_of_floats(make(rank, size), n), raw(x), raw(y), 30.0, {});
        CHECK(y == total(size, n));
    });
}

std::uint64_t bytes_sent(World& world) {
    std::uint64_t sum = 0;
    for (const auto& group : world.ranks) sum += group->links().bytes_sent();
    return sum;
}

}  // namespace

TEST_CASE("sums, in slices and whole, of any count") {
    for (const int size : {2, 3}) {
        const std::uint64_t before = vm_write::payload_written;
        World world(size, "vm-write", 64);
        for (const std::size_t n : {0U, 1U, 3U, 13U, 1000U, 5003U}) {
            check_sum(world, ring, n);
            check_sum(world, one_shot, n);
        }
        CHECK(bytes_sent(world) == vm_write::payload_written - before);
    }
    World world(2, "vm-write");
    for (int i = 0; i < 3; ++i) {
        check_sum(world, ring, 700'001);
        check_sum(world, one_shot, 700'001);  // more than the buffer in which it is looked at
    }
}

TEST_CASE("more messages than there are headings, in both directions and in the background") {
    World world(3, "vm-write");
    const std::vector<std::size_t> sizes{1, 100, 5000, 100'000};
    Make const makes[] = {ring, one_shot};
    world.each([&](int rank, Group& group) {
        for (int round = 0; round < 3; ++round) check_many_at_a_time(rank, 3, group, sizes, makes, round);
    });
}

TEST_CASE("ranks that call different operations learn what the other called") {
    World world(2, "vm-write");
    std::vector<std::optional<Error>> errors(2);
    world.each([&](int rank, Group& group) {
        const std::size_t n = rank == 0 ? 1000 : 2000;
        std::vector<float> x(n);
        std::vector<float> y(n);
        errors[static_cast<std::size_t>(rank)] =
            error_of([&] { group.run(sum_of_floats(one_shot(rank, 2), n), raw(x), raw(y), 30.0, {}); });
    });
    for (const auto& error : errors) {
        REQUIRE(error.has_value());
        CHECK(error->kind() == ErrorKind::desync);
        CHECK(std::string(error->what()).find("1000 elements") != std::string::npos);
        CHECK(std::string(error->what()).find("2000 elements") != std::string::npos);
    }
}

TEST_CASE("a rank that leaves is named by those who wait for it") {
    World world(3, "vm-write");
    check_sum(world, one_shot, 10);
    std::vector<std::optional<Error>> errors(3);
    world.each([&](int rank, Group& group) {
        if (rank == 1) return group.close();
        std::vector<float> x(10);
        std::vector<float> y(10);
        errors[static_cast<std::size_t>(rank)] =
            error_of([&] { group.run(sum_of_floats(one_shot(rank, 3), 10), raw(x), raw(y), 30.0, {}); });
    });
    check_gone(errors, 1);
}

TEST_CASE("after a deadline nobody writes to the receiver's memory, however late") {
    World world(2, "vm-write");
    check_sum(world, ring, 10);
    for (const std::size_t n : {100U, 500'000U}) {
        World late(2, "vm-write", 0, true, {}, no_control_plane);
        std::vector<float> x(n, 1.0F);
        std::vector<float> y(n, 7.0F);
        // Links are made when both ranks come.
        check_sum(late, ring, 10);
        const auto first =
            error_of([&] { late.ranks[0]->run(sum_of_floats(ring(0, 2), n), raw(x), raw(y), 0.05, {}); });
        REQUIRE(first.has_value());
        CHECK(first->kind() == ErrorKind::op_timeout);
        CHECK(std::string(first->what()).find("may still write") == std::string::npos);
        const std::vector<float> before = y;
        std::vector<float> z(n);
        const auto second =
            error_of([&] { late.ranks[1]->run(sum_of_floats(ring(1, 2), n), raw(x), raw(z), 1.0, {}); });
        REQUIRE(second.has_value());
        CHECK(second->kind() == ErrorKind::peer_lost);
        CHECK(y == before);
    }
}
