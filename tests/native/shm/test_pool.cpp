// Allreduces of ordinary memory, which ranks that share memory add up in one place.
#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <optional>

#include "groups.hpp"
#include "shm/arena_of.hpp"
#include "shm/pool.hpp"

using namespace collectives;
using namespace collectives::testing;

namespace {

// One rank's array: ordinary memory, or in its arena.
class Array {
  public:
    Array(Group& group, std::size_t n, bool in_heap) : arena_(arena_of(group)), own_(in_heap ? 0 : n), n_(n) {
        if (in_heap) heap_ = arena_->allocate(n * sizeof(float));
    }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    ~Array() {
        if (heap_ != nullptr) arena_->release(heap_, n_ * sizeof(float));
    }

    std::byte* bytes() { return heap_ != nullptr ? heap_ : raw(own_); }
    std::span<float> floats() { return {reinterpret_cast<float*>(bytes()), n_}; }
    void fill(const std::vector<float>& values) { std::ranges::copy(values, floats().begin()); }
    bool holds(const std::vector<float>& values) { return same(values, floats()); }

  private:
    std::shared_ptr<Arena> arena_;
    std::vector<float> own_;
    std::byte* heap_ = nullptr;
    std::size_t n_;
};

void run(Group& group, const std::shared_ptr<const Operation>& operation, Array& x, Array& y) {
    group.run(operation, x.bytes(), y.bytes(), 30.0, {});
}

#if defined(__SANITIZE_THREAD__)
constexpr std::size_t large = 300'000;
#elif defined(__SANITIZE_ADDRESS__)
constexpr std::size_t large = 1'000'001;
#else
constexpr std::size_t large = 2'000'001;
#endif

}  // namespace

TEST_CASE("sums in one place, with pieces of all sizes, also where output is input") {
    for (const bool crowded : {true, false}) {
        for (const int size : {2, 3, 4, 5}) {
            for (const std::size_t segment : {std::size_t{64}, std::size_t{4096}, std::size_t{0}}) {
                World world(size, "shm", segment, crowded);
                world.each([&](int rank, Group& group) {
                    // Around the smallest that is pooled, and with a second half that is short of pieces.
                    for (const std::size_t n : {1023U, 1024U, 1025U, 1040U, 5003U, 20'000U}) {
                        const auto operation = sum_of_floats(pooled(rank, size), n);
                        Array x(group, n, false);
                        Array y(group, n, false);
                        x.fill(values(rank, n));
                        run(group, operation, x, y);
                        CHECK(y.holds(total(size, n)));
                        CHECK(x.holds(values(rank, n)));
                        run(group, operation, x, x);
                        CHECK(x.holds(total(size, n)));
                    }
                });
            }
        }
    }
}

TEST_CASE("sums in one place, of ranks that share two cores, side by side or not, or more") {
    for (const std::vector<int>& homes : {std::vector{0, 0, 1},
                                          {0, 1, 0},
                                          {0, 1, 1},
                                          {0, 0, 1, 1},
                                          {0, 1, 0, 1},
                                          {1, 0, 0, 0},
                                          {0, 1, 2, 2},
                                          {0, 0, 0, 1, 1},
                                          {0, -1, 0, 1}}) {
        const auto size = static_cast<int>(homes.size());
        for (const std::size_t segment : {std::size_t{64}, std::size_t{0}}) {
            World world(size, "shm", segment, true, homes);
            world.each([&](int rank, Group& group) {
                for (const std::size_t n :
                     {std::size_t{1025}, std::size_t{segment == 64 ? 5003U : 70'001U}}) {
                    const auto operation = sum_of_floats(pooled(rank, size), n);
                    Array x(group, n, false);
                    Array y(group, n, false);
                    for (int round = 0; round < fewer(4); ++round) {
                        x.fill(values(rank + round, n));
                        const Floats sum = total(size, n, 1.0F, round);
                        run(group, operation, x, y);
                        CHECK(y.holds(sum));
                        run(group, operation, x, x);
                        CHECK(x.holds(sum));
                    }
                }
            });
        }
    }
}

TEST_CASE("ranks use as many accumulators as those whose they are say") {
    for (const auto& [first, second] : {std::pair{4U, 16U}, {16U, 5U}, {1U, 4U}, {0U, 1000U}}) {
        World world(3, "shm", 0, false);
        // The halves are added up in the memory of ranks 0 and 1.
        arena_of(*world.ranks[0])->header().short_accumulators = first;
        arena_of(*world.ranks[1])->header().short_accumulators = second;
        world.each([&](int rank, Group& group) {
            const std::size_t n = 400'001;
            Array x(group, n, false);
            Array y(group, n, false);
            const auto operation = sum_of_floats(pooled(rank, 3), n);
            for (int round = 0; round < 3; ++round) {
                x.fill(values(rank, n));
                run(group, operation, x, y);
                CHECK(y.holds(total(3, n)));
            }
        });
    }
}

TEST_CASE("large sums in one place, and averages") {
    for (const int size : {2, 4}) {
        World world(size, "shm");
        world.each([&](int rank, Group& group) {
            Array x(group, large, false);
            Array y(group, large, false);
            x.fill(values(rank, large));
            run(group, sum_of_floats(pooled(rank, size), large), x, y);
            CHECK(y.holds(total(size, large)));
            run(group, sum_of_floats(pooled(rank, size), large, Op::avg), x, y);
            std::vector<float> mean = total(size, large);
            for (float& value : mean) value /= static_cast<float>(size);
            CHECK(y.holds(mean));
        });
    }
}

TEST_CASE("ordinary memory on some ranks, and memory of the arena on others") {
    constexpr std::size_t n = 50'000;
    for (const int size : {2, 3}) {
        World world(size, "shm");
        world.each([&](int rank, Group& group) {
            const auto operation = sum_of_floats(pooled(rank, size), n);
            // Bit r: whether rank r brings memory of its arena.
            for (int round = 0; round < 3 << size; ++round) {
                const bool in_heap = (round >> rank & 1) != 0;
                Array x(group, n, in_heap);
                Array y(group, n, in_heap || round % 5 == 0);
                x.fill(values(rank, n));
                run(group, operation, x, y);
                CHECK(y.holds(total(size, n)));
            }
        });
    }
}

TEST_CASE("pooled operations among others, many at a time") {
    for (const int size : {2, 4}) {
        World world(size, "shm", 4096);
        world.each([&](int rank, Group& group) {
            constexpr std::array<std::size_t, 6> sizes{60'000, 1, 5'000, 1024, 70'001, 13};
            for (int round = 0; round < fewer(6); ++round) {
                std::vector<std::unique_ptr<Array>> xs;
                std::vector<std::unique_ptr<Array>> ys;
                std::vector<std::shared_ptr<Work>> works;
                for (std::size_t i = 0; i < 30; ++i) {
                    const std::size_t n = sizes[i % sizes.size()];
                    const bool in_heap = (i * 7 + static_cast<std::size_t>(rank + round)) % 3 == 0;
                    xs.push_back(std::make_unique<Array>(group, n, in_heap));
                    ys.push_back(std::make_unique<Array>(group, n, in_heap));
                    xs.back()->fill(values(rank, n));
                    const auto algorithm =
                        std::array{pooled, ring, pooled, one_shot}[(i + static_cast<std::size_t>(round)) % 4];
                    works.push_back(group.start(sum_of_floats(algorithm(rank, size), n), xs.back()->bytes(),
                                                ys.back()->bytes(), 30.0));
                }
                REQUIRE(group.wait(*works.back(), 30.0, {}));
                for (std::size_t i = 0; i < ys.size(); ++i) {
                    REQUIRE(ys[i]->holds(total(size, sizes[i % sizes.size()])));
                }
            }
        });
    }
}

TEST_CASE("those who sleep until they know where the others' arrays are, are woken") {
    constexpr std::size_t n = 2000;
    World world(3, "shm");
    world.each([&](int rank, Group& group) {
        const auto operation = sum_of_floats(pooled(rank, 3), n);
        Array x(group, n, true);
        Array y(group, n, true);
        x.fill(values(rank, n));
        run(group, operation, x, y);
        const auto began = std::chrono::steady_clock::now();
        for (int i = 0; i < 20; ++i) {
            if (rank == i % 3) std::this_thread::sleep_for(std::chrono::milliseconds(5));
            run(group, operation, x, y);
            CHECK(y.holds(total(3, n)));
        }
        // A sleep that nobody ends takes 50 ms.
        CHECK(std::chrono::steady_clock::now() - began < std::chrono::milliseconds(900));
    });
}

TEST_CASE("a rank that does not come, leaves, or calls something else is found out") {
    constexpr std::size_t n = 100'000;
    const auto call = [](Group& group, int rank, std::size_t count, double timeout) {
        return error_of([&] {
            Array x(group, count, false);
            group.run(sum_of_floats(pooled(rank, 3), count), x.bytes(), x.bytes(), timeout, {});
        });
    };
    SUBCASE("late") {
        World world(3, "shm");
        std::array<std::optional<Error>, 3> errors;
        world.each([&](int rank, Group& group) {
            call(group, rank, n, 30.0);  // so that links are there
            if (rank != 1) errors[static_cast<std::size_t>(rank)] = call(group, rank, n, 1.0);
        });
        check_late(errors, 1);
    }
    SUBCASE("gone") {
        World world(3, "shm");
        std::array<std::optional<Error>, 3> errors;
        world.each([&](int rank, Group& group) {
            call(group, rank, n, 30.0);
            if (rank == 1) return group.close();
            errors[static_cast<std::size_t>(rank)] = call(group, rank, n, 30.0);
        });
        check_gone(errors, 1);
    }
    SUBCASE("another count") {
        World world(3, "shm");
        std::array<std::optional<Error>, 3> errors;
        world.each([&](int rank, Group& group) {
            errors[static_cast<std::size_t>(rank)] = call(group, rank, rank == 1 ? n / 2 : n, 30.0);
        });
        for (const auto& error : errors) {
            REQUIRE(error.has_value());
            CHECK((error->kind() == ErrorKind::desync || error->kind() == ErrorKind::peer_lost));
        }
        CHECK(errors[1]->kind() == ErrorKind::desync);
    }
}

TEST_CASE("a schedule in which not all send to all cannot be pooled") {
    CHECK_THROWS_AS(Program(0, 2, 1, 1, {}, {recv(1, {buffer_out, 0, 1})}, true), Error);
    CHECK_THROWS_AS(Program(0, 1, 1, 1, {}, {}, true), Error);
}
