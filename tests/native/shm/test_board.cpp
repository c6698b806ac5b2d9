// Short operations, in which all that ranks publish lies on one board.
#include <array>
#include <chrono>
#include <optional>

#include "groups.hpp"
#include "shm/arena_of.hpp"

using namespace collectives;
using namespace collectives::testing;

namespace {

using Make = std::shared_ptr<const Program> (*)(int, int);

const std::vector<std::string> shared_memory{"shm"};

std::vector<float> sum(Group& group, const std::shared_ptr<const Program>& program, std::size_t n,
                       double timeout = 30.0) {
    std::vector<float> x = values(program->rank, n);
    std::vector<float> y(n);
    group.run(sum_of_floats(program, n), raw(x), raw(y), timeout, {});
    CHECK(x == values(program->rank, n));
    return y;
}

// The root's floats to all.
std::shared_ptr<const Operation> broadcast(int rank, int size, int root, std::size_t n) {
    std::vector<int> others;
    for (int r = 0; r < size; ++r) {
        if (r != root) others.push_back(r);
    }
    const Chunk all{buffer_out, 0, 1};
    const Step step = rank == root ? send(others, all) : recv(root, all);
    auto program = std::make_shared<const Program>(rank, size, 0, 1, std::vector<std::vector<Block>>{},
                                                   std::vector<Step>{step}, false, Exchange{all, all});
    Call call;
    call.collective = static_cast<std::uint8_t>(Collective::broadcast);
    call.count = n;
    call.dtype = static_cast<std::uint8_t>(DType::float32);
    call.root = static_cast<std::uint32_t>(root);
    return std::make_shared<const Operation>(program, DType::float32, Op::sum, Bounds(0, 0), Bounds(n, 1),
                                             call);
}

// Block i of everyone's array to rank i, which puts them in a row.
std::shared_ptr<const Operation> transpose(int rank, int size, std::size_t n) {
    const auto blocks = static_cast<std::uint32_t>(size);
    const auto own = static_cast<std::uint32_t>(rank);
    std::vector<Step> steps;
    for (std::uint32_t r = 0; r < blocks; ++r) {
        if (r != own) steps.push_back(send({static_cast<int>(r)}, {buffer_in, r, 1}));
    }
    steps.push_back({StepKind::copy, false, {buffer_out, own, 1}, {}, {{-1, {buffer_in, own, 1}}}, {}});
    for (std::uint32_t r = 0; r < blocks; ++r) {
        if (r != own) steps.push_back(recv(static_cast<int>(r), {buffer_out, r, 1}));
    }
    auto program =
        std::make_shared<const Program>(rank, size, blocks, blocks, std::vector<std::vector<Block>>{}, steps,
                                        false, Exchange{{buffer_in, 0, blocks}, {buffer_in, own, 1}});
    return sum_of_floats(program, n * blocks);
}

}  // namespace

TEST_CASE("sums of all sizes that fit, and of larger ones, by one and by all") {
    for (const std::string& scheme : shared_memory) {
        for (const bool crowded : {true, false}) {
            for (const int size : {2, 3, 5}) {
                for (const std::size_t segment : {std::size_t{0}, std::size_t{128}, std::size_t{1024}}) {
                    World world(size, scheme, segment, crowded);
                    world.each([&](int rank, Group& group) {
                        for (const std::size_t n :
                             {0U, 1U, 29U, 30U, 31U, 500U, 514U, 1024U, 1025U, 5003U, 32'768U, 32'769U}) {
                            if (segment != 0 && n > 100 * segment) continue;  // hundreds of slices are enough
                            for (const Make make : {&flat, &one_shot}) {
                                CHECK(sum(group, make(rank, size), n) == total(size, n));
                            }
                        }
                    });
                }
            }
        }
    }
}

TEST_CASE("many in a row and at a time, among others") {
    for (const std::string& scheme : shared_memory) {
        for (const int size : {2, 4}) {
            World world(size, scheme);
            world.each([&](int rank, Group& group) {
                constexpr std::array<std::size_t, 5> sizes{1, 700, 9'000, 20, 40'000};
                constexpr std::array<Make, 4> makes{flat, ring, pooled, one_shot};
                for (int round = 0; round < fewer(10); ++round) {
                    check_many_at_a_time(rank, size, group, sizes, makes, round);
                }
            });
        }
    }
}

TEST_CASE("a root that is ahead of the others overwrites nothing that they have yet to take") {
    for (const std::string& scheme : shared_memory) {
        World world(3, scheme);
        world.each([&](int rank, Group& group) {
            for (int i = 0; i < 200; ++i) {
                const int root = i / 50 % 3;
                const std::size_t n =
                    std::array<std::size_t, 3>{1, 1000, 20'000}[static_cast<std::size_t>(i) % 3];
                if (rank != root && i % 40 == 7) std::this_thread::sleep_for(std::chrono::milliseconds(3));
                std::vector<float> x = rank == root ? values(i, n) : std::vector<float>(n);
                group.run(broadcast(rank, 3, root, n), nullptr, raw(x), 30.0, {});
                REQUIRE(x == values(i, n));
                if (i % 60 == 59) CHECK(sum(group, flat(rank, 3), 5) == total(3, 5));
            }
        });
    }
}

TEST_CASE("a rank that goes on with another root overwrites nothing that others have yet to take") {
    for (const std::string& scheme : shared_memory) {
        World world(3, scheme);
        world.each([&](int rank, Group& group) {
            for (int i = 0; i < 48; ++i) {
                const int root = i / 4 % 3;
                const std::size_t n =
                    std::array<std::size_t, 3>{20, 1000, 20'000}[static_cast<std::size_t>(i) % 3];
                if (rank != root) std::this_thread::sleep_for(std::chrono::milliseconds(3));
                std::vector<float> x = rank == root ? values(i, n) : std::vector<float>(n);
                group.run(broadcast(rank, 3, root, n), nullptr, raw(x), 30.0, {});
                CHECK(x == values(i, n));
                CHECK(sum(group, flat(rank, 3), n) == total(3, n));
                if (i % 5 == 4) CHECK(sum(group, flat(rank, 3), n) == total(3, n));
            }
        });
    }
}

TEST_CASE("each takes another part of what all say") {
    for (const std::string& scheme : shared_memory) {
        for (const int size : {2, 4}) {
            World world(size, scheme);
            world.each([&](int rank, Group& group) {
                const auto blocks = static_cast<std::size_t>(size);
                for (const std::size_t n : {1U, 100U, 3000U}) {
                    std::vector<float> x(n * blocks);
                    std::vector<float> y(n * blocks);
                    std::vector<float> wanted(n * blocks);
                    for (std::size_t i = 0; i < x.size(); ++i) {
                        x[i] = static_cast<float>(static_cast<std::size_t>(rank) * 100'000 + i);
                        const std::size_t from = static_cast<std::size_t>(rank) * n + i % n;
                        wanted[i] = static_cast<float>(i / n * 100'000 + from);
                    }
                    group.run(transpose(rank, size, n), raw(x), raw(y), 30.0, {});
                    CHECK(y == wanted);
                }
            });
        }
    }
}

TEST_CASE("two ranks exchange what lies in shared memory or elsewhere, in any mixture") {
    World world(2, "shm", 0, false);
    world.each([&](int rank, Group& group) {
        const std::shared_ptr<Arena> arena = arena_of(group);
        for (const std::size_t n : {1025U, 8'000U, 32'768U}) {
            std::vector<float> own(n);
            auto* const shared = reinterpret_cast<float*>(arena->allocate(n * sizeof(float)));
            std::vector<float> result(n);
            for (int i = 0; i < 60; ++i) {
                // Each combination of both ranks' choices, several times.
                const bool in_heap = (rank == 0 ? i : i / 2) % 2 == 0;
                float* const x = in_heap ? shared : own.data();
                float* const y = result.data();
                std::ranges::transform(values(rank, n), x, [&](float v) { return v + float(i); });
                if (i % 7 == rank) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                group.run(sum_of_floats(flat(rank, 2), n), reinterpret_cast<std::byte*>(x),
                          reinterpret_cast<std::byte*>(y), 30.0, {});
                // The other has taken what it reads where it lies.
                std::fill_n(x, n, -1.0F);
                bool right = true;
                const std::vector<float> expected = total(2, n);
                for (std::size_t k = 0; k < n; ++k) right &= y[k] == expected[k] + 2.0F * float(i);
                REQUIRE(right);
            }
            arena->release(reinterpret_cast<std::byte*>(shared), n * sizeof(float));
        }
    });
}

TEST_CASE("of two ranks that exchange, one that gives up lets the other not take what may be anything") {
    World world(2, "shm", 0, false, {}, no_control_plane);
    std::vector<std::optional<Error>> errors(2);
    world.each([&](int rank, Group& group) {
        constexpr std::size_t n = 20'000;
        sum(group, flat(rank, 2), n);
        auto* const x = arena_of(group)->allocate(n * sizeof(float));
        std::vector<float> y(n);
        if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
        errors[static_cast<std::size_t>(rank)] = error_of(
            [&] { group.run(sum_of_floats(flat(rank, 2), n), x, raw(y), rank == 0 ? 0.2 : 5.0, {}); });
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        arena_of(group)->release(x, n * sizeof(float));
    });
    for (const auto& error : errors) REQUIRE(error.has_value());
    CHECK(errors[0]->kind() == ErrorKind::op_timeout);
    CHECK(errors[1]->kind() == ErrorKind::peer_lost);
}

TEST_CASE("those who sleep are woken") {
    for (const std::string& scheme : shared_memory) {
        World world(3, scheme);
        world.each([&](int rank, Group& group) {
            sum(group, flat(rank, 3), 1);
            const auto began = std::chrono::steady_clock::now();
            for (int i = 0; i < 20; ++i) {
                if (rank == i % 3) std::this_thread::sleep_for(std::chrono::milliseconds(5));
                CHECK(sum(group, flat(rank, 3), 3) == total(3, 3));
            }
            // A sleep that nobody ends takes 50 ms.
            CHECK(std::chrono::steady_clock::now() - began < std::chrono::milliseconds(900));
        });
    }
}

TEST_CASE("a rank that is late, leaves, or calls something else is found out") {
    for (const std::string& scheme : shared_memory) {
        const auto outcomes = [&](const std::function<void(int, Group&)>& work) {
            World world(3, scheme);
            std::vector<std::optional<Error>> errors(3);
            world.each([&](int rank, Group& group) {
                sum(group, flat(rank, 3), 10);
                errors[static_cast<std::size_t>(rank)] = error_of([&] { work(rank, group); });
            });
            return errors;
        };
        SUBCASE("late") {
            const auto errors = outcomes([](int rank, Group& group) {
                if (rank != 1) sum(group, flat(rank, 3), 10, 0.5);
            });
            check_late(errors, 1);
        }
        SUBCASE("gone") {
            const auto errors = outcomes([](int rank, Group& group) {
                if (rank == 1) return group.close();
                sum(group, flat(rank, 3), 10);
            });
            check_gone(errors, 1);
        }
        // The other call: with another count, on the same board, or over links only.
        for (const Make make : {&flat, &ring, &one_shot}) {
            SUBCASE("another call") {
                const auto began = std::chrono::steady_clock::now();
                const auto errors = outcomes([&](int rank, Group& group) {
                    sum(group, rank == 1 ? make(rank, 3) : flat(rank, 3), rank == 1 ? 20 : 10);
                });
                for (const auto& error : errors) {
                    REQUIRE(error.has_value());
                    CHECK(error->kind() == ErrorKind::desync);
                    CHECK(std::string(error->what()).find("10 elements") != std::string::npos);
                    CHECK(std::string(error->what()).find("20 elements") != std::string::npos);
                }
                CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(10));
            }
        }
    }
}

TEST_CASE("ranks that disagreed about a root, who waits for nobody, are found out later") {
    for (const std::string& scheme : shared_memory) {
        World world(3, scheme);
        std::vector<std::optional<Error>> errors(3);
        world.each([&](int rank, Group& group) {
            sum(group, flat(rank, 3), 10);
            errors[static_cast<std::size_t>(rank)] = error_of([&] {
                std::vector<float> x(5);
                group.run(broadcast(rank, 3, rank % 2, 5), nullptr, raw(x), 30.0, {});
                sum(group, flat(rank, 3), 10);
            });
        });
        for (const auto& error : errors) {
            REQUIRE(error.has_value());
            CHECK(error->kind() == ErrorKind::desync);
        }
    }
}

TEST_CASE("a schedule that passes something on, or takes what nobody says, is not flat") {
    const Chunk all{buffer_in, 0, 1};
    const Chunk result{buffer_out, 0, 1};
    CHECK_THROWS_AS(Program(0, 2, 1, 1, {}, {recv(1, result), send({1}, result, {{0, buffer_out, 0, 0}})},
                            false, Exchange{all, all}),
                    Error);
    CHECK_THROWS_AS(Program(0, 2, 1, 1, {}, {send({1}, all), recv(1, result)}, false, Exchange{all, result}),
                    Error);
    CHECK_THROWS_AS(
        Program(0, 2, 1, 1, {}, {send({1}, all), recv(1, result)}, false, Exchange{all, {buffer_in, 1, 1}}),
        Error);
}
