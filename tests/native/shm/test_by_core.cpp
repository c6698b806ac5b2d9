// Small allreduces of ranks that share cores, added up core by core.
#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <set>

#include "groups.hpp"

using namespace collectives;
using namespace collectives::testing;

namespace {

using Make = std::shared_ptr<const Program> (*)(int, int);
using Homes = std::vector<int>;

const std::vector<Homes> many_homes{{0, 0, 1},       {0, 1, 1},       {0, 1, 2},    {0, 0, 0},
                                    {0, 0, 1, 1},    {0, 1, 0, 1},    {1, 0, 0, 0}, {0, 1, 2, 2},
                                    {3, 3, 3, 1, 1}, {0, -1, 0, 1, 1}};

std::vector<float> sum(Group& group, const std::shared_ptr<const Program>& program, std::vector<float> x,
                       Op op = Op::sum, double timeout = 30.0) {
    std::vector<float> y(x.size());
    group.run(sum_of_floats(program, x.size(), op), raw(x), raw(y), timeout, {});
    return y;
}

// Floats of very different size, so that the order of additions shows.
std::vector<float> uneven(int rank, std::size_t n) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) {
        x[i] = (static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 5) % 11) + 0.3F) *
               std::array{1.0F, 1e4F, 1e-4F, 3e7F}[(i + static_cast<std::size_t>(rank)) % 4];
    }
    return x;
}

// The sums of the ranks of each core, in the order of their first ranks.
std::vector<float> total_by_core(const Homes& homes, std::size_t n) {
    std::vector<float> all(n);
    std::set<int> seen;
    for (const int home : homes) {
        if (!seen.insert(home).second) continue;
        std::vector<float> here(n);
        bool first = true;
        for (std::size_t rank = 0; rank < homes.size(); ++rank) {
            if (homes[rank] != home) continue;
            const std::vector<float> x = uneven(static_cast<int>(rank), n);
            for (std::size_t i = 0; i < n; ++i) here[i] = first ? x[i] : here[i] + x[i];
            first = false;
        }
        for (std::size_t i = 0; i < n; ++i) all[i] = seen.size() == 1 ? here[i] : all[i] + here[i];
    }
    return all;
}

}  // namespace

TEST_CASE("sums and averages of all sizes, wherever ranks are, also in place") {
    for (const Homes& homes : many_homes) {
        const auto size = static_cast<int>(homes.size());
        const std::size_t segment = homes.size() % 2 == 0 ? 0 : 256;
        World world(size, "shm", segment, true, homes);
        world.each([&](int rank, Group& group) {
            for (const std::size_t n : {0U, 1U, 28U, 29U, 500U, 1024U, 1025U, 5003U, 32'768U}) {
                CHECK(sum(group, flat(rank, size), values(rank, n)) == total(size, n));
                std::vector<float> mean = total(size, n);
                for (float& value : mean) value /= static_cast<float>(size);
                CHECK(sum(group, flat(rank, size), values(rank, n), Op::avg) == mean);
                // What does not fit on the board goes over links, which read it in place.
                if (n * sizeof(float) > (segment > 0 ? segment : 128 << 10)) continue;
                std::vector<float> x = values(rank, n);
                group.run(sum_of_floats(flat(rank, size), n), raw(x), raw(x), 30.0, {});
                CHECK(x == total(size, n));
            }
        });
    }
}

TEST_CASE("whoever comes last on a core, all ranks have the same bits") {
    for (const Homes& homes : many_homes) {
        if (std::find(homes.begin(), homes.end(), -1) != homes.end()) continue;
        const auto size = static_cast<int>(homes.size());
        World world(size, "shm", 0, true, homes);
        world.each([&](int rank, Group& group) {
            for (int round = 0; round < fewer(40); ++round) {
                const std::size_t n = std::array{5U, 300U, 9'000U}[static_cast<std::size_t>(round) % 3];
                if (rank == round % size) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                CHECK(sum(group, flat(rank, size), uneven(rank, n)) == total_by_core(homes, n));
            }
        });
    }
}

TEST_CASE("ranks that are ahead overwrite nothing that others have yet to read") {
    for (const Homes& homes : {Homes{0, 0, 1, 1}, Homes{0, 0, 0, 1, 1}}) {
        const auto size = static_cast<int>(homes.size());
        World world(size, "shm", 0, true, homes);
        world.each([&](int rank, Group& group) {
            constexpr std::array<std::size_t, 5> sizes{1, 700, 9'000, 20, 30'000};
            constexpr std::array<Make, 3> makes{flat, ring, pooled};
            for (int round = 0; round < fewer(8); ++round) {
                if (rank == round % size) std::this_thread::sleep_for(std::chrono::milliseconds(2));
                check_many_at_a_time(rank, size, group, sizes, makes, round);
            }
        });
    }
}

TEST_CASE("floats of 16 bits are rounded once, not once a core") {
    constexpr std::array<std::uint16_t, 4> numbers{0x6800, 0x3c00, 0x3c00, 0x0000};  // 2048, 1, 1, 0
    World world(4, "shm", 0, true, {0, 0, 1, 1});
    world.each([&](int rank, Group& group) {
        for (const std::size_t n : {3U, 900U, 9'000U}) {
            Call call;
            call.count = n;
            call.dtype = static_cast<std::uint8_t>(DType::float16);
            std::vector<std::uint16_t> x(n, numbers[static_cast<std::size_t>(rank)]);
            std::vector<std::uint16_t> y(n);
            const auto operation = std::make_shared<const Operation>(flat(rank, 4), DType::float16, Op::sum,
                                                                     Bounds(n, 1), Bounds(n, 1), call);
            group.run(operation, reinterpret_cast<std::byte*>(x.data()),
                      reinterpret_cast<std::byte*>(y.data()), 30.0, {});
            CHECK(y == std::vector<std::uint16_t>(n, 0x6801));  // 2050
        }
    });
}

TEST_CASE(
    "a rank that is late, leaves, or calls something else is found out by its mates and by the others") {
    const Homes homes{0, 0, 1, 1};
    for (const int odd : {0, 1, 3}) {
        const auto outcomes = [&](const std::function<void(int, Group&)>& work) {
            World world(4, "shm", 0, true, homes);
            std::vector<std::optional<Error>> errors(4);
            world.each([&](int rank, Group& group) {
                CHECK(sum(group, flat(rank, 4), values(rank, 10)) == total(4, 10));
                errors[static_cast<std::size_t>(rank)] = error_of([&] { work(rank, group); });
            });
            return errors;
        };
        check_late(outcomes([&](int rank, Group& group) {
                       if (rank != odd) sum(group, flat(rank, 4), values(rank, 10), Op::sum, 0.5);
                   }),
                   static_cast<std::size_t>(odd));
        check_gone(outcomes([&](int rank, Group& group) {
                       if (rank == odd) return group.close();
                       sum(group, flat(rank, 4), values(rank, 10));
                   }),
                   static_cast<std::size_t>(odd));
        // With another count, core by core, in a Pool, or over links only.
        for (const Make make : {&flat, &pooled, &ring}) {
            const auto began = std::chrono::steady_clock::now();
            const auto errors = outcomes([&](int rank, Group& group) {
                const bool other = rank == odd;
                sum(group, other ? make(rank, 4) : flat(rank, 4), values(rank, other ? 3000 : 10));
            });
            for (const auto& error : errors) {
                REQUIRE(error.has_value());
                CHECK(error->kind() == ErrorKind::desync);
                CHECK(std::string(error->what()).find("10 elements") != std::string::npos);
                CHECK(std::string(error->what()).find("3000 elements") != std::string::npos);
            }
            CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(10));
        }
    }
}
