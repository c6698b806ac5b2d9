// How a rank that has nothing to do gives way.
#include <doctest/doctest.h>
#include <sched.h>

#include <atomic>
#include <thread>

#include "base/cpu.hpp"
#include "base/wait.hpp"
#include "cores.hpp"

using namespace collectives;
using Next = Backoff::Next;

namespace {

// Looks before the first yield.
int looks_of(Backoff& backoff) {
    int looks = 0;
    while (backoff.idle(false) == Next::look) ++looks;
    return looks;
}

}  // namespace

TEST_CASE("who waits for ranks that need its core yields at once, others look first") {
    Backoff backoff(64);
    CHECK(backoff.idle(true) == Next::look_anew);
    CHECK(backoff.idle(true) == Next::look_anew);
    backoff.reset();
    CHECK(looks_of(backoff) == 64);
}

TEST_CASE("looking in vain halves it, success doubles it, and a yield for a peer is neither") {
    Backoff backoff(128);
    CHECK(looks_of(backoff) == 128);
    backoff.reset();
    CHECK(looks_of(backoff) == 64);
    backoff.reset();
    CHECK(backoff.idle(true) == Next::look_anew);
    backoff.reset();
    CHECK(looks_of(backoff) == 32);
    backoff.reset();
    CHECK(backoff.idle(false) == Next::look);
    backoff.reset();
    CHECK(looks_of(backoff) == 64);
}

TEST_CASE("where ranks share cores looking pays more often than not, or is left") {
    const int here = ::sched_getcpu();
    Backoff backoff(512, here, true);
    CHECK(looks_of(backoff) == 512);
    backoff.reset();
    CHECK(looks_of(backoff) == 128);
    for (int i = 0; i < 8; ++i) {  // in time and in vain by turns
        backoff.reset();
        CHECK(backoff.idle(false) == Next::look);
        backoff.reset();
        looks_of(backoff);
    }
    backoff.reset();
    CHECK(looks_of(backoff) == 32);
    for (int i = 0; i < 4; ++i) {
        backoff.reset();
        CHECK(backoff.idle(false) == Next::look);
    }
    backoff.reset();
    CHECK(looks_of(backoff) == 512);
}

TEST_CASE("who yields in vain sleeps in the end") {
    Backoff backoff(0);
    int yields = 0;
    while (backoff.idle(true) != Next::sleep && yields < 100'000) ++yields;
    CHECK(yields < 100'000);
}

TEST_CASE("a core that others keep taking is left alone for a while, but not for one time slice") {
    std::atomic<bool> ends{false};
    std::thread([&] {
        testing::bind_to(::sched_getcpu());
        std::thread other_program([&] {  // on the same core
            while (!ends.load()) collectives::pause();
        });
        Backoff backoff(0);
        const auto sleeps_at_once = [&] {
            backoff.reset();
            return backoff.idle(true) == Next::sleep;
        };
        const auto is_preempted = [&] {
            while (true) {
                backoff.reset();
                if (backoff.idle(true) == Next::look_late) return backoff.preempted(-1);
            }
        };
        is_preempted();
        CHECK(!sleeps_at_once());
        // It is remembered for 20 ms, which may have passed.
        bool sleeps = false;
        for (int i = 0; i < 50 && !sleeps; ++i) {
            is_preempted();
            sleeps = sleeps_at_once();
        }
        CHECK(sleeps);
        ends.store(true);
        other_program.join();
    }).join();
}
