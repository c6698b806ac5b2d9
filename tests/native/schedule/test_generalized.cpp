// Operations that code outside of the core does: they begin when all ranks have made the same call, keep
// their place among others, and end once.
#include <array>
#include <atomic>
#include <thread>

#include "groups.hpp"

using namespace collectives;
using namespace collectives::testing;

namespace {

using State = GeneralizedRequest::State;
using namespace std::chrono_literals;

struct Started {
    std::shared_ptr<Work> work;
    GeneralizedRequest& request() const { return *work->generalized; }
};

// Ranks agree on it by a sum of one element.
Started start(Group& group, int rank, int size, std::vector<float>& memory, double timeout = 30.0) {
    memory.resize(2);
    return {group.start_generalized(sum_of_floats(one_shot(rank, size), 1), raw(memory),
                                    raw(memory) + sizeof(float), timeout, "outside")};
}

}  // namespace

TEST_CASE("it begins when all ranks have made the call, and is over when that is reported") {
    for (const std::string& scheme : all_schemes) {
        World world(3, scheme);
        std::atomic<int> begun = 0;
        world.each([&](int rank, Group& group) {
            std::vector<float> memory;
            if (rank == 2) {
                std::this_thread::sleep_for(50ms);
                CHECK(begun == 0);
            }
            const Started call = start(group, rank, 3, memory);
            REQUIRE(call.request().wait(30s) == State::begun);
            ++begun;
            CHECK_FALSE(group.done(*call.work));
            CHECK_FALSE(group.wait(*call.work, 0.01, {}));
            call.request().complete();
            CHECK(group.wait(*call.work, 30.0, {}));
            CHECK(call.request().wait(0s) == State::over);
            const Record record = group.records().back();
            CHECK(record.engine == "outside");
            CHECK(record.state == RecordState::done);
        });
    }
}

TEST_CASE("no operation runs beside it, and those after it run when it is over") {
    World world(2, "shm");
    world.each([&](int rank, Group& group) {
        std::vector<float> memory, more;
        std::vector<float> x = values(rank, 100);
        std::vector<float> y(100);
        const auto sum = sum_of_floats(ring(rank, 2), 100);
        for (int i = 0; i < 20; ++i) {
            const Started first = start(group, rank, 2, memory);
            const auto second = group.start(sum, raw(x), raw(y), 30.0);
            const Started third = start(group, rank, 2, more);
            REQUIRE(first.request().wait(30s) == State::begun);
            CHECK(third.request().wait(0s) == State::waiting);
            CHECK_FALSE(group.done(*second));
            std::thread elsewhere([&] { first.request().complete(); });
            REQUIRE(group.wait(*second, 30.0, {}));
            CHECK(y == total(2, 100));
            elsewhere.join();
            REQUIRE(third.request().wait(30s) == State::begun);
            third.request().complete();
            REQUIRE(group.wait(*third.work, 30.0, {}));
        }
    });
}

TEST_CASE("a failure is the first cause, and what is reported later counts for nothing") {
    World world(2, "tcp");
    world.each([&](int rank, Group& group) {
        std::vector<float> memory;
        const Started call = start(group, rank, 2, memory);
        REQUIRE(call.request().wait(30s) == State::begun);
        call.request().fail(Error(ErrorKind::aborted, "the device is gone"));
        call.request().complete();
        CHECK_THROWS_WITH_AS(group.wait(*call.work, 30.0, {}), "the device is gone", Error);
        std::vector<float> x(1), y(1);
        CHECK_THROWS_WITH_AS(group.run(sum_of_floats(ring(rank, 2), 1), raw(x), raw(y), 30.0, {}),
                             "the device is gone", Error);
    });
}

TEST_CASE("a rank that is late for it is named") {
    World world(2, "shm");
    world.each([&](int rank, Group& group) {
        if (rank == 1) return;
        std::vector<float> memory;
        const Started call = start(group, 0, 2, memory, 0.05);
        try {
            group.wait(*call.work, 30.0, {});
            FAIL("no error");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::op_timeout);
            CHECK(error.ranks() == std::vector{1});
        }
        CHECK(call.request().wait(30s) == State::over);
    });
}

TEST_CASE("the end may be reported after the communicator is gone") {
    std::array<std::shared_ptr<GeneralizedRequest>, 2> kept;
    {
        World world(2, "shm");
        world.each([&](int rank, Group& group) {
            std::vector<float> memory;
            const Started call = start(group, rank, 2, memory);
            REQUIRE(call.request().wait(30s) == State::begun);
            kept[static_cast<std::size_t>(rank)] = call.work->generalized;
            group.close();
            CHECK_THROWS_AS(group.wait(*call.work, 30.0, {}), Error);
        });
    }
    for (const auto& request : kept) {
        request->complete();
        request->fail(Error(ErrorKind::aborted, "late"));
        CHECK(request->is_over());
        CHECK_FALSE(request->error().has_value());
    }
}
