// How a rank that has nothing to do gives way.
#include <doctest/doctest.h>

#include "wait.hpp"

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

TEST_CASE("looking in vain halves it, success doubles it, and a yield for a mate is neither") {
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

TEST_CASE("who yields in vain sleeps in the end") {
    Backoff backoff(0);
    int yields = 0;
    while (backoff.idle(true) != Next::sleep && yields < 100'000) ++yields;
    CHECK(yields < 100'000);
}

TEST_CASE("a lost time slice is remembered, unless work of those waited for explains it, and it is seldom") {
    const auto yield_quickly = [](Backoff& backoff, int times) {
        while (times > 0) {
            backoff.reset();
            if (backoff.idle(true) == Next::look_anew) --times;
        }
    };
    const auto sleeps_at_once = [](Backoff& backoff) {
        backoff.reset();
        return backoff.idle(true) == Next::sleep;
    };
    // It is remembered for two milliseconds at first, which may have passed.
    const auto sleeps_soon = [&](Backoff& backoff, LostSlice how) {
        bool sleeps = false;
        for (int i = 0; i < 50 && !sleeps; ++i) {
            backoff.tell_lost_slice(how);
            sleeps = sleeps_at_once(backoff);
        }
        return sleeps;
    };
    Backoff explained(0);
    yield_quickly(explained, 32);
    explained.tell_lost_slice(LostSlice::to_own_work);
    CHECK(!sleeps_at_once(explained));
    CHECK(sleeps_soon(explained, LostSlice::to_own_work));  // it happens all the time
    Backoff unexplained(0);
    yield_quickly(unexplained, 32);
    CHECK(sleeps_soon(unexplained, LostSlice::to_others));
    Backoff away(0);
    yield_quickly(away, 32);
    CHECK(sleeps_soon(away, LostSlice::to_others_while_away));
}
