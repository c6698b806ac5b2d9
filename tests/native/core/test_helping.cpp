// Ranks with one core each, which run operations on the thread that starts them while something moves.
#include <chrono>
#include <optional>
#include <thread>

#include "groups.hpp"

using namespace collectives;
using namespace collectives::testing;

namespace {

constexpr std::size_t n = 20'000;

World of_single_cores(int size, const std::string& scheme) {
    std::vector<int> homes;
    for (int rank = 0; rank < size; ++rank) homes.push_back(rank);
    return World(size, scheme, 0, false, homes);
}

// Started `count` times, each on memory of its own, in a thread of the rank.
class Started {
  public:
    Started(Group& group, int rank, int size, int count) : size_(size) {
        for (int i = 0; i < count; ++i) {
            xs_.push_back(values(rank + i, n));
            ys_.emplace_back(n);
        }
        for (int i = 0; i < count; ++i) {
            const auto at = static_cast<std::size_t>(i);
            works_.push_back(
                group.start(sum_of_floats(pooled(rank, size), n), raw(xs_[at]), raw(ys_[at]), 30.0));
        }
    }
    const std::vector<std::shared_ptr<Work>>& works() const { return works_; }
    void check(Group& group) {
        for (std::size_t i = 0; i < works_.size(); ++i) {
            REQUIRE(group.wait(*works_[i], 30.0, {}));
            CHECK(ys_[i] == total(size_, n, 1.0F, static_cast<int>(i)));
        }
    }

  private:
    int size_;
    std::vector<std::vector<float>> xs_;
    std::vector<std::vector<float>> ys_;
    std::vector<std::shared_ptr<Work>> works_;
};

}  // namespace

TEST_CASE("ranks with one core run what they start, and leave what does not move to the progress thread") {
    for (const std::string& scheme : all_schemes) {
        for (const int size : {2, 3}) {
            World world = of_single_cores(size, scheme);
            world.each([&](int rank, Group& group) {
                for (int round = 0; round < fewer(6); ++round) {
                    // Later than any of the others is patient.
                    if (rank == round % size) std::this_thread::sleep_for(std::chrono::milliseconds(3));
                    Started some(group, rank, size, round % 2 == 0 ? 1 : 40);
                    std::vector<float> x = values(rank, n);
                    std::vector<float> y(n);
                    if (round % 3 == 0) {
                        group.run(sum_of_floats(ring(rank, size), n), raw(x), raw(y), 30.0, {});
                        CHECK(y == total(size, n));
                    }
                    some.check(group);
                }
            });
        }
    }
}

TEST_CASE("several threads of ranks with one core start operations and wait for them") {
    World world = of_single_cores(2, "shm");
    world.each([&](int rank, Group& group) {
        // Which thread comes first may differ between ranks, so all operations are the same.
        std::vector<std::thread> threads;
        for (int t = 0; t < 3; ++t) {
            threads.emplace_back([&, rank] {
                for (int i = 0; i < 30; ++i) {
                    std::vector<float> x(n, 1.0F);
                    std::vector<float> y(n);
                    const auto work = group.start(sum_of_floats(pooled(rank, 2), n), raw(x), raw(y), 30.0);
                    CHECK(group.wait(*work, 30.0, {}));
                    CHECK(y == std::vector<float>(n, 2.0F));
                }
            });
        }
        for (std::thread& thread : threads) thread.join();
    });
}

TEST_CASE("operations that a rank with one core has started end when it closes its communicator") {
    for (const std::string& scheme : all_schemes) {
        World world = of_single_cores(2, scheme);
        world.each([&](int rank, Group& group) {
            {
                Started first(group, rank, 2, 1);  // so that links are there
                first.check(group);
            }
            if (rank == 1) return;
            Started some(group, rank, 2, 3);  // rank 1 does not come
            group.close();
            for (const std::shared_ptr<Work>& work : some.works()) {
                const std::optional<Error> error = error_of([&] { group.wait(*work, 30.0, {}); });
                REQUIRE(error.has_value());
                CHECK(error->kind() == ErrorKind::aborted);
            }
        });
    }
}

TEST_CASE("a rank with one core learns of errors of what it has started") {
    World world = of_single_cores(2, "shm");
    world.each([&](int rank, Group& group) {
        {
            Started first(group, rank, 2, 1);
            first.check(group);
        }
        std::vector<float> x = values(rank, n);
        const std::size_t count = rank == 0 ? n : n / 2;
        const auto work = group.start(sum_of_floats(pooled(rank, 2), count), raw(x), raw(x), 30.0);
        const std::optional<Error> error = error_of([&] { group.wait(*work, 30.0, {}); });
        REQUIRE(error.has_value());
        CHECK((error->kind() == ErrorKind::desync || error->kind() == ErrorKind::peer_lost));
    });
}
