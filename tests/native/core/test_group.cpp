// Whole operations between ranks that are threads, over every kind of link: right results, and the right
// error on every rank when something goes wrong.
#include <atomic>
#include <optional>

#include "groups.hpp"
#include "shm/arena_of.hpp"

using namespace collectives;
using namespace collectives::testing;

namespace {

using Make = std::shared_ptr<const Program> (*)(int, int);

void check_sum(World& world, Make make, std::size_t n) {
    const int size = static_cast<int>(world.ranks.size());
    std::vector<std::vector<float>> results(world.ranks.size());
    world.each([&](int rank, Group& group) {
        std::vector<float> x = values(rank, n);
        std::vector<float>& y = results[static_cast<std::size_t>(rank)];
        y.resize(n);
        group.run(sum_of_floats(make(rank, size), n), raw(x), raw(y), 30.0, {});
    });
    for (const std::vector<float>& result : results) REQUIRE(result == total(size, n));
}

// A message of n floats from or to `peer`.
std::shared_ptr<const Operation> message(StepKind kind, int rank, int size, int peer, std::size_t n) {
    Step step = kind == StepKind::send ? send({peer}, {buffer_in, 0, 1}) : recv(peer, {buffer_out, 0, 1});
    auto program = std::make_shared<const Program>(rank, size, 1, 1, std::vector<std::vector<Block>>{},
                                                   std::vector<Step>{std::move(step)});
    Call call;
    call.collective = static_cast<std::uint8_t>(Collective::send);
    call.count = n;
    return std::make_shared<const Operation>(std::move(program), DType::float32, Op::sum, Bounds(n, 1),
                                             Bounds(n, 1), call);
}

// Sanitizers make these too slow to be repeated often, or large enough to go around the caches.
#if defined(__SANITIZE_THREAD__)
constexpr int repeats = 2;
constexpr std::size_t large = 250'000;
#elif defined(__SANITIZE_ADDRESS__)
constexpr int repeats = 5;
constexpr std::size_t large = 1'000'000;
#else
constexpr int repeats = 20;
constexpr std::size_t large = 4'000'000;
#endif

}  // namespace

TEST_CASE("sums over every kind of link, for every count around the number of ranks and of slices") {
    for (const std::string& scheme : all_schemes) {
        for (const int size : {2, 3, 4}) {
            World world(size, scheme, 64);
            for (const std::size_t n : {0U, 1U, 2U, 3U, 5U, 13U, 14U, 15U, 100U, 1000U, 5003U}) {
                check_sum(world, ring, n);
                check_sum(world, one_shot, n);
            }
        }
    }
}

TEST_CASE("large messages with slices of the default size") {
    for (const std::string& scheme : all_schemes) {
        World world(3, scheme);
        check_sum(world, ring, 700'001);
        check_sum(world, one_shot, 700'001);
        for (int i = 0; i < repeats; ++i)
            check_sum(world, one_shot, 700'001);  // some ranks are ahead of others
    }
}

TEST_CASE("memory of the arena is read where it lies") {
    World world(2, "shm");
    constexpr std::size_t n = 300'000;
    world.each([&](int rank, Group& group) {
        auto* x = reinterpret_cast<float*>(arena_of(group)->allocate(n * sizeof(float)));
        auto* y = reinterpret_cast<float*>(arena_of(group)->allocate(n * sizeof(float)));
        std::ranges::copy(values(rank, n), x);
        const auto operation = sum_of_floats(ring(rank, 2), n);
        for (int i = 0; i < 5; ++i) {
            group.run(operation, reinterpret_cast<std::byte*>(x), reinterpret_cast<std::byte*>(y), 30.0, {});
        }
        const Floats expected = total(2, n);
        CHECK(same(expected, {y, n}));
        arena_of(group)->release(reinterpret_cast<std::byte*>(x), n * sizeof(float));
        arena_of(group)->release(reinterpret_cast<std::byte*>(y), n * sizeof(float));
    });
}

TEST_CASE("results go straight to memory of the arena, where a peer has such") {
    for (const int size : {2, 3}) {
        for (const bool everyone : {true, false}) {
            World world(size, "shm");
            world.each([&](int rank, Group& group) {
                for (const std::size_t n : {std::size_t{40'000}, std::size_t{300'001}, large}) {
                    std::vector<float> own(2 * n);
                    const bool in_arena = everyone || rank == 1;
                    auto* const memory = arena_of(group)->allocate(2 * n * sizeof(float));
                    float* const x = in_arena ? reinterpret_cast<float*>(memory) : own.data();
                    float* const y = x + n;
                    std::ranges::copy(values(rank, n), x);
                    const auto operation = sum_of_floats(two_shot(rank, size), n);
                    const Floats expected = total(size, n);
                    for (int i = 0; i < 3; ++i) {
                        std::fill_n(y, n, -1.0F);
                        const auto job = group.start(operation, reinterpret_cast<std::byte*>(x),
                                                     reinterpret_cast<std::byte*>(y), 30.0);
                        REQUIRE(group.wait(*job, 30.0, {}));
                        CHECK(same(expected, {y, n}));
                    }
                    arena_of(group)->release(memory, 2 * n * sizeof(float));
                }
            });
        }
    }
}

TEST_CASE("in place a result may come where a rank has sent what it replaces, from who reads that") {
    for (const int size : {2, 3}) {
        for (int rank = 0; rank < size; ++rank) {
            const auto program = two_shot(rank, size, false, true);
            REQUIRE(program->receptions.size() == static_cast<std::size_t>(size - 1));
            for (const Program::Reception& reception : program->receptions) CHECK(reception.replaces == 1);
            REQUIRE(program->relay);
            for (const Program::Relay::Message& message : program->relay->messages) CHECK(message.read == 1);
            const auto elsewhere = two_shot(rank, size);
            CHECK(elsewhere->receptions.size() == static_cast<std::size_t>(size - 1));
            for (const Program::Reception& reception : elsewhere->receptions) CHECK(reception.replaces == 0);
        }
    }
    const Chunk whole{buffer_out, 0, 2};
    const Chunk half{buffer_out, 1, 1};
    const auto receptions = [](std::vector<Step> steps) {
        return Program(0, 3, 2, 2, {}, std::move(steps)).receptions.size();
    };
    CHECK(receptions({send({1}, whole), recv(1, whole, {{0, buffer_out, 0, 0}})}) == 1);
    // Who reads it is not who writes there, or not the only one, or reads something else.
    CHECK(receptions({send({2}, whole), recv(1, whole, {{0, buffer_out, 0, 0}})}) == 0);
    CHECK(receptions({send({1, 2}, whole), recv(1, whole, {{0, buffer_out, 0, 0}})}) == 0);
    CHECK(receptions({send({1}, whole), send({2}, whole),
                      recv(1, whole, {{0, buffer_out, 0, 0}, {1, buffer_out, 0, 0}})}) == 0);
    CHECK(receptions({send({1}, whole), recv(1, half, {{0, buffer_out, 0, 1}})}) == 0);
    CHECK(receptions({{StepKind::copy, false, whole, {}, {{-1, {buffer_in, 0, 2}}}, {}},
                      recv(1, whole, {{0, buffer_out, 0, 0}})}) == 0);
}

TEST_CASE("results go straight to where they replace what was added, in any mixture of ranks") {
    for (const int size : {2, 3}) {
        for (int mixture = 0; mixture < 8; ++mixture) {
            World world(size, "shm");
            world.each([&](int rank, Group& group) {
                const bool in_arena = (mixture & 1) == 0 || rank == 1;
                const bool in_place = (mixture & 2) == 0 || rank == 1;
                // An earlier operation on the same memory: nothing can be said of it yet.
                const bool behind = (mixture & 4) != 0 && rank == 0;
                for (const std::size_t n : {std::size_t{40'000}, std::size_t{300'001}, large}) {
                    std::vector<float> own(2 * n);
                    auto* const memory = arena_of(group)->allocate(2 * n * sizeof(float));
                    float* const x = in_arena ? reinterpret_cast<float*>(memory) : own.data();
                    float* const y = in_place ? x : x + n;
                    const auto raw_of = [](float* p) { return reinterpret_cast<std::byte*>(p); };
                    const auto operation = sum_of_floats(two_shot(rank, size, false, in_place), n);
                    const auto again = sum_of_floats(two_shot(rank, size, false, true), n);
                    const Floats input = values(rank, n);
                    const Floats expected = total(size, n, static_cast<float>(size));
                    for (int i = 0; i < fewer(3); ++i) {
                        std::ranges::copy(input, x);
                        const auto first = group.start(operation, raw_of(x), raw_of(y), 30.0);
                        if (!behind) REQUIRE(group.wait(*first, 30.0, {}));
                        const auto second = group.start(again, raw_of(y), raw_of(y), 30.0);
                        REQUIRE(group.wait(*second, 30.0, {}));
                        CHECK(same(expected, {y, n}));
                    }
                    arena_of(group)->release(memory, 2 * n * sizeof(float));
                }
            });
        }
    }
}

TEST_CASE("two results on their way into the same memory come one after the other") {
    World world(2, "shm");
    constexpr std::size_t n = 200'000;
    world.each([&](int rank, Group& group) {
        auto* const x = reinterpret_cast<float*>(arena_of(group)->allocate(3 * n * sizeof(float)));
        float* const y = x + n;
        float* const z = y + n;
        std::ranges::copy(values(rank, n), x);
        const auto operation = sum_of_floats(two_shot(rank, 2), n);
        const auto raw_of = [](float* p) { return reinterpret_cast<std::byte*>(p); };
        const Floats expected = total(2, n);
        for (int i = 0; i < 5; ++i) {
            // Both ranks have the same sum, so its sum is twice that.
            group.start(operation, raw_of(x), raw_of(y), 30.0);
            group.start(operation, raw_of(y), raw_of(z), 30.0);
            const auto last = group.start(operation, raw_of(x), raw_of(y), 30.0);
            REQUIRE(group.wait(*last, 30.0, {}));
            CHECK(same(expected, {y, n}));
            CHECK(same(total(2, n, 2.0F), {z, n}));
        }
        arena_of(group)->release(raw_of(x), 3 * n * sizeof(float));
    });
}

TEST_CASE("an average is divided once, where the sum is complete") {
    for (const std::string& scheme : all_schemes) {
        World world(4, scheme);
        world.each([&](int rank, Group& group) {
            std::vector<float> x(10, static_cast<float>(rank));
            std::vector<float> y(10);
            group.run(sum_of_floats(ring(rank, 4), 10, Op::avg), raw(x), raw(y), 30.0, {});
            CHECK(y == std::vector<float>(10, 1.5F));
        });
    }
}

TEST_CASE("the lock of a caller is released before it waits, and kept where it need not wait") {
    struct Counted final : CallerLock {
        int times = 0;
        void release() override { ++times; }
    };
    for (const bool crowded : {true, false}) {
        World world(2, "shm", 0, crowded);
        world.each([&](int rank, Group& group) {
            std::vector<float> x = values(rank, 10);
            std::vector<float> y(10);
            const auto operation = sum_of_floats(all_to_all(rank, 2, true), 10);
            const auto times_released = [&] {
                Counted lock;
                group.run(operation, raw(x), raw(y), 30.0, {}, &lock);
                CHECK(y == total(2, 10));
                return lock.times;
            };
            CHECK(times_released() > 0);  // there are no links yet
            for (int i = 0; i < 3; ++i) {
                if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
                CHECK((times_released() > 0) == (rank == 0));
            }
            // A call waits for the one before it, which cannot end before the late rank starts its own.
            for (const int late : {1, 0}) {
                if (rank == late) std::this_thread::sleep_for(std::chrono::milliseconds(100));
                const auto job = group.start(operation, raw(x), raw(y), 30.0);
                const int times = times_released();
                if (rank != late) CHECK(times > 0);
                CHECK(group.done(*job));
            }
        });
    }
}

TEST_CASE("asynchronous operations complete in order, also before a blocking one") {
    for (const std::string& scheme : all_schemes) {
        World world(2, scheme);
        world.each([&](int rank, Group& group) {
            constexpr std::size_t n = 5000;
            std::vector<float> x = values(rank, n);
            std::vector<std::vector<float>> ys(10, std::vector<float>(n));
            const auto operation = sum_of_floats(ring(rank, 2), n);
            std::vector<std::shared_ptr<Work>> works;
            for (auto& y : ys) works.push_back(group.start(operation, raw(x), raw(y), 30.0));
            std::vector<float> last(n);
            group.run(operation, raw(x), raw(last), 30.0, {});
            for (const auto& work : works) CHECK(group.done(*work));
            for (const auto& y : ys) CHECK(y == total(2, n));
            CHECK(last == total(2, n));
        });
    }
}

TEST_CASE("operations of many sizes and ways share the links") {
    for (const std::string& scheme : all_schemes) {
        for (const int size : {2, 4}) {
            World world(size, scheme, 4096);
            world.each([&](int rank, Group& group) {
                const std::vector<std::size_t> sizes{200'000, 1, 5'000, 0, 70'001, 13, 100'000, 64};
                std::vector<std::vector<float>> xs;
                std::vector<std::vector<float>> ys;
                for (const std::size_t n : sizes) {
                    xs.push_back(values(rank, n));
                    ys.emplace_back(n);
                }
                for (int round = 0; round < fewer(8); ++round) {
                    std::vector<std::shared_ptr<Work>> works;
                    for (std::size_t i = 0; i < sizes.size(); ++i) {
                        const auto algorithm =
                            std::array{ring, one_shot}[(i + static_cast<std::size_t>(round)) % 2];
                        works.push_back(group.start(sum_of_floats(algorithm(rank, size), sizes[i]),
                                                    raw(xs[i]), raw(ys[i]), 30.0));
                    }
                    REQUIRE(group.wait(*works.back(), 30.0, {}));
                    for (const auto& work : works) CHECK(group.done(*work));
                    for (std::size_t i = 0; i < sizes.size(); ++i) REQUIRE(ys[i] == total(size, sizes[i]));
                }
            });
        }
    }
}

TEST_CASE("an operation on the result of an earlier one waits for it") {
    for (const std::string& scheme : all_schemes) {
        World world(2, scheme, 4096);
        world.each([&](int rank, Group& group) {
            constexpr std::size_t n = 100'000;
            std::vector<float> x = values(rank, n);
            std::vector<float> once(n);
            std::vector<float> twice(n);
            const auto operation = sum_of_floats(ring(rank, 2), n);
            group.start(operation, raw(x), raw(once), 30.0);
            const auto last = group.start(operation, raw(once), raw(twice), 30.0);
            REQUIRE(group.wait(*last, 30.0, {}));
            CHECK(once == total(2, n));
            CHECK(twice == total(2, n, 2.0F));
        });
    }
}

TEST_CASE("ranks that send round a ring before they receive do not wait for each other") {
    for (const std::string& scheme : all_schemes) {
        World world(3, scheme);
        world.each([&](int rank, Group& group) {
            constexpr std::size_t n = 3'000'000;  // far more than any link holds
            std::vector<float> mine = values(rank, n);
            std::vector<float> other(n);
            const int right = (rank + 1) % 3;
            const int left = (rank + 2) % 3;
            const auto sent =
                group.start(message(StepKind::send, rank, 3, right, n), raw(mine), nullptr, 30.0);
            group.run(message(StepKind::recv, rank, 3, left, n), nullptr, raw(other), 30.0, {});
            CHECK(group.done(*sent));
            CHECK(other == values(left, n));
        });
    }
}

TEST_CASE("one error ends all that is under way, and each says why") {
    for (const std::string& scheme : all_schemes) {
        World world(2, scheme);
        std::vector<std::optional<Error>> errors(3);
        world.each([&](int rank, Group& group) {
            constexpr std::size_t n = 1000;
            std::vector<float> x = values(rank, n);
            std::vector<std::vector<float>> ys(3, std::vector<float>(n));
            const auto operation = sum_of_floats(ring(rank, 2), n);
            if (rank == 1) {
                group.run(operation, raw(x), raw(ys[0]), 30.0, {});
                group.close();
                return;
            }
            std::vector<std::shared_ptr<Work>> works;
            for (auto& y : ys) works.push_back(group.start(operation, raw(x), raw(y), 30.0));
            for (std::size_t i = 0; i < works.size(); ++i) {
                errors[i] = error_of([&] { group.wait(*works[i], 30.0, {}); });
            }
            CHECK(ys[0] == total(2, n));
        });
        CHECK_FALSE(errors[0].has_value());
        for (const auto& error : {errors[1], errors[2]}) {
            REQUIRE(error.has_value());
            CHECK(error->kind() == ErrorKind::peer_lost);
            CHECK(error->ranks() == std::vector<int>{1});
        }
    }
}

TEST_CASE("ranks that call different operations learn what the other called") {
    for (const std::string& scheme : all_schemes) {
        World world(2, scheme);
        std::vector<std::optional<Error>> errors(2);
        world.each([&](int rank, Group& group) {
            const std::size_t n = rank == 0 ? 1000 : 2000;
            std::vector<float> x(n);
            std::vector<float> y(n);
            const auto operation = sum_of_floats(one_shot(rank, 2), n);
            errors[static_cast<std::size_t>(rank)] =
                error_of([&] { group.run(operation, raw(x), raw(y), 30.0, {}); });
        });
        for (const auto& error : errors) {
            REQUIRE(error.has_value());
            CHECK(error->kind() == ErrorKind::desync);
            CHECK(std::string(error->what()).find("1000 elements") != std::string::npos);
            CHECK(std::string(error->what()).find("2000 elements") != std::string::npos);
        }
        // Later calls repeat the first cause.
        const auto again = error_of([&] { world.ranks[0]->connect({1}, 1.0, {}); });
        REQUIRE(again.has_value());
        CHECK(again->kind() == ErrorKind::desync);
    }
}

TEST_CASE("a rank that leaves is named by those who wait for it") {
    for (const std::string& scheme : all_schemes) {
        World world(3, scheme);
        check_sum(world, one_shot, 10);
        std::vector<std::optional<Error>> errors(3);
        world.each([&](int rank, Group& group) {
            if (rank == 1) return group.close();
            std::vector<float> x(10);
            std::vector<float> y(10);
            errors[static_cast<std::size_t>(rank)] =
                error_of([&] { group.run(sum_of_floats(one_shot(rank, 3), 10), raw(x), raw(y), 30.0, {}); });
        });
        for (const int rank : {0, 2}) {
            const auto& error = errors[static_cast<std::size_t>(rank)];
            REQUIRE(error.has_value());
            CHECK(error->kind() == ErrorKind::peer_lost);
        }
    }
}

TEST_CASE("a deadline names the ranks that are late") {
    for (const std::string& scheme : all_schemes) {
        World world(2, scheme);
        check_sum(world, one_shot, 10);
        std::vector<float> x(100);
        std::vector<float> y(100);
        const auto error = error_of(
            [&] { world.ranks[0]->run(sum_of_floats(one_shot(0, 2), 100), raw(x), raw(y), 0.05, {}); });
        REQUIRE(error.has_value());
        CHECK(error->kind() == ErrorKind::op_timeout);
        CHECK(error->ranks() == std::vector<int>{1});
    }
}

TEST_CASE("a signal ends a wait, and closing from another thread does") {
    for (const std::string& scheme : all_schemes) {
        World world(2, scheme);
        check_sum(world, one_shot, 10);
        std::vector<float> x(100);
        std::vector<float> y(100);
        std::atomic<int> asked = 0;
        const auto interrupted = error_of([&] {
            world.ranks[0]->run(sum_of_floats(one_shot(0, 2), 100), raw(x), raw(y), 30.0,
                                [&] { return ++asked >= 2; });
        });
        REQUIRE(interrupted.has_value());
        CHECK(interrupted->kind() == ErrorKind::interrupted);

        World other(2, scheme);
        check_sum(other, one_shot, 10);
        std::optional<Error> closed;
        std::thread waiter([&] {
            closed = error_of(
                [&] { other.ranks[0]->run(sum_of_floats(one_shot(0, 2), 100), raw(x), raw(y), 30.0, {}); });
        });
        other.ranks[0]->close();
        waiter.join();
        REQUIRE(closed.has_value());
        CHECK(closed->kind() == ErrorKind::aborted);
    }
}

TEST_CASE("point to point keeps its own count beside the collectives") {
    for (const std::string& scheme : all_schemes) {
        World world(3, scheme);
        check_sum(world, one_shot, 10);
        world.each([&](int rank, Group& group) {
            if (rank == 2) return;  // takes no part, and stays in step
            std::vector<float> data = rank == 0 ? values(5, 1000) : std::vector<float>(1000);
            const auto operation =
                message(rank == 0 ? StepKind::send : StepKind::recv, rank, 3, 1 - rank, 1000);
            for (int i = 0; i < 3; ++i) group.run(operation, raw(data), raw(data), 30.0, {});
            CHECK(data == values(5, 1000));
        });
        check_sum(world, ring, 1000);
    }
}
