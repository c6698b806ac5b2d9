// Results are stored around the caches where they do not fit, unless that was found to be slower.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstddef>

#include "core/result_stores.hpp"

using namespace collectives;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t mebi = 1 << 20;
constexpr std::uint64_t share = 16 * mebi;  // arrays may have twelve
constexpr int settled = 100;                // uses, after which trials are rare
const int program = 0;
const int another = 0;

ResultStores::Work work(std::uint64_t in, std::uint64_t out) { return {&program, in * mebi, out * mebi}; }

using Both = std::array<std::chrono::microseconds, 2>;  // through the caches, and around them

// How many of so many uses, which take `taken`, went around the caches.
int around(ResultStores& results, const ResultStores::Work& work, int uses, Both taken) {
    int found = 0;
    for (int i = 0; i < uses; ++i) {
        const ResultStores::Turn turn = results.next(work);
        const auto way = static_cast<std::size_t>(turn.stores);
        if (turn.timed) results.took(work, turn.stores, taken[way]);
        found += turn.stores == Stores::streaming ? 1 : 0;
    }
    return found;
}

}  // namespace

TEST_CASE("what fits stays in the caches, and what is much larger goes around them, untimed") {
    ResultStores results(share);
    CHECK(around(results, work(1, 2), 1000, {4ms, 1ms}) == 0);
    CHECK(around(results, work(0, 11), 1000, {4ms, 1ms}) == 0);
    CHECK(around(results, work(5, 5), 1000, {4ms, 1ms}) == 0);
    CHECK(around(results, work(16, 16), 1000, {1ms, 2ms}) == 1000);
    CHECK(around(results, work(64, 64), 1000, {1ms, 2ms}) == 1000);
}

TEST_CASE("the results of a call count together, also if each operation writes few of them") {
    ResultStores results(share);
    for (int i = 0; i < 1000; ++i) {
        CHECK(results.next(work(1, 1), 64 * mebi).stores == Stores::streaming);
        CHECK_FALSE(results.next(work(1, 1), 13 * mebi).timed);
        CHECK(results.next(work(1, 1), 5 * mebi).stores == Stores::cached);
        CHECK(results.next(work(0, 1), 11 * mebi).stores == Stores::cached);
        CHECK(results.next(work(1, 1), 11 * mebi).stores == Stores::streaming);
    }
}

TEST_CASE("both ways are tried for what is somewhat larger, and the faster one is gone from then on") {
    ResultStores results(share);
    CHECK(around(results, work(8, 16), 5, {1ms, 2ms}) == 5);
    around(results, work(8, 16), settled, {1ms, 2ms});
    CHECK(around(results, work(8, 16), 2000, {1ms, 2ms}) <= 50);
    around(results, work(6, 6), settled, {2ms, 1ms});
    CHECK(around(results, work(6, 6), 2000, {2ms, 1ms}) >= 1950);
}

TEST_CASE("a way that has become the faster one is found again") {
    ResultStores results(share);
    around(results, work(8, 8), settled, {1ms, 2ms});
    around(results, work(8, 8), 1100, {2ms, 1ms});
    CHECK(around(results, work(8, 8), 1000, {2ms, 1ms}) >= 950);
}

TEST_CASE("ranks that have come to different choices try the same way at the same time, and agree again") {
    ResultStores one(share);
    ResultStores other(share);
    around(one, work(8, 8), settled, {1ms, 2ms});
    around(other, work(8, 8), settled, {2ms, 1ms});
    int apart = 0;
    for (int i = 0; i < 2000; ++i) {
        const ResultStores::Turn here = one.next(work(8, 8));
        const ResultStores::Turn there = other.next(work(8, 8));
        // Both take as long as the slower of them.
        const auto taken = here.stores == Stores::streaming || there.stores == Stores::streaming ? 2ms : 1ms;
        CHECK(here.timed == there.timed);
        if (here.timed) {
            CHECK(here.stores == there.stores);
            one.took(work(8, 8), here.stores, taken);
            other.took(work(8, 8), there.stores, taken);
        }
        if (i >= 1000) apart += here.stores != there.stores ? 1 : 0;
    }
    CHECK(apart == 0);
}

TEST_CASE("a way that is hardly faster is no reason to leave the other one") {
    ResultStores results(share);
    around(results, work(8, 8), settled, {98us, 100us});
    CHECK(around(results, work(8, 8), 1000, {98us, 100us}) >= 950);
}

TEST_CASE("ranks that were waited for once, or most of the time, change nothing") {
    ResultStores results(share);
    const auto at = work(8, 16);
    for (int i = 0; i < settled; ++i) {
        const ResultStores::Turn turn = results.next(at);
        const auto taken = turn.stores == Stores::cached ? 1ms : 2ms;
        if (turn.timed) results.took(at, turn.stores, i % 4 == 0 ? taken : taken + 50ms);
    }
    CHECK(around(results, at, 400, {1ms, 2ms}) <= 20);
}

TEST_CASE("uses that were not timed say nothing") {
    ResultStores results(share);
    for (int i = 0; i < 1000; ++i) {
        const ResultStores::Turn turn = results.next(work(8, 8));
        if (turn.timed && turn.stores == Stores::cached) results.took(work(8, 8), turn.stores, 1us);
    }
    CHECK(around(results, work(8, 8), 8, {1ms, 1ms}) == 8);
}

TEST_CASE("each size of each program has its own, and the oldest is forgotten") {
    ResultStores results(share);
    around(results, work(8, 8), settled, {1ms, 2ms});
    CHECK(around(results, {&another, 8 * mebi, 8 * mebi}, 2, {1ms, 2ms}) == 2);
    CHECK(around(results, work(8, 8), 100, {1ms, 2ms}) <= 8);
    for (std::uint64_t n = 1; n <= 32; ++n) {
        around(results, {&program, 8 * mebi + n, 8 * mebi}, 1, {1ms, 1ms});
    }
    CHECK(around(results, work(8, 8), 2, {1ms, 2ms}) == 2);
}

TEST_CASE(
    "what does not fit is not tried where ranks share cores, and nothing where nobody knows the caches") {
    ResultStores crowded(share, true);
    CHECK(around(crowded, work(8, 8), 1000, {1ms, 2ms}) == 1000);
    CHECK(around(crowded, work(5, 5), 1000, {2ms, 1ms}) == 0);
    ResultStores unknowing;
    CHECK(!unknowing.knows_caches());
    CHECK(around(unknowing, work(8, 8), 1000, {2ms, 1ms}) == 0);
    CHECK(around(unknowing, work(8, 16), 1000, {1ms, 2ms}) == 1000);
}
