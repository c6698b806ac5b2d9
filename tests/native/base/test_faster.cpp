// The faster of two ways is found, and found again when they change.
#include <doctest/doctest.h>

#include <array>
#include <chrono>

#include "base/faster.hpp"

using namespace collectives;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t smallest = 2 << 20;  // so that few copies are a look
constexpr int looks = 4;
constexpr int settled = 600;  // uses, after which trials are rare

// So many uses, of which way i takes `taken[i]`; how often the one was gone that is the faster.
int uses_of_faster(Faster& faster, std::size_t n, int uses, std::array<std::chrono::microseconds, 2> taken) {
    int found = 0;
    for (int i = 0; i < uses; ++i) {
        const std::size_t way = faster.next(n);
        REQUIRE(way < 2);
        faster.took(n, way, taken[way]);
        found += taken[way] <= taken[1 - way] ? 1 : 0;
    }
    return found;
}

}  // namespace

TEST_CASE("both ways are tried, and the faster one is gone from then on") {
    Faster faster(smallest);
    CHECK(uses_of_faster(faster, smallest, 2 * looks, {40us, 20us}) == looks);
    uses_of_faster(faster, smallest, settled, {40us, 20us});
    CHECK(uses_of_faster(faster, smallest, 1000, {40us, 20us}) >= 950);
}

TEST_CASE("a way that has become the faster one is found again") {
    Faster faster(smallest);
    uses_of_faster(faster, smallest, 100, {400us, 20us});
    uses_of_faster(faster, smallest, settled, {20us, 400us});
    CHECK(uses_of_faster(faster, smallest, 1000, {20us, 400us}) >= 950);
}

TEST_CASE("what is faster for one size says nothing of others") {
    Faster faster(smallest);
    uses_of_faster(faster, smallest, 100, {400us, 20us});
    uses_of_faster(faster, 64 * smallest, settled, {20us, 400us});
    CHECK(uses_of_faster(faster, 64 * smallest, 1000, {20us, 400us}) >= 950);
    uses_of_faster(faster, smallest, settled, {400us, 20us});
    CHECK(uses_of_faster(faster, smallest, 1000, {400us, 20us}) >= 950);
}

TEST_CASE("one use that was interrupted changes nothing") {
    Faster faster(smallest);
    uses_of_faster(faster, smallest, settled, {400us, 20us});
    const std::size_t way = faster.next(smallest);
    faster.took(smallest, way, 50ms);
    CHECK(uses_of_faster(faster, smallest, 900, {400us, 20us}) >= 850);
}

TEST_CASE("a way that is slow for a while, or slow again after it was tried once more, is kept") {
    Faster faster(smallest);
    uses_of_faster(faster, smallest, settled, {40us, 20us});
    CHECK(uses_of_faster(faster, smallest, looks - 1, {40us, 400us}) == 0);
    CHECK(uses_of_faster(faster, smallest, 100, {40us, 20us}) == 100);
    // Slow long enough to be doubted, it is tried once more when it is fast again.
    int slow = 0;
    while (faster.next(smallest) == 1 && slow < 100) {
        faster.took(smallest, 1, 400us);
        ++slow;
    }
    CHECK(slow < 100);
    CHECK(uses_of_faster(faster, smallest, 100, {40us, 20us}) >= 100 - looks);
}

TEST_CASE("a way that has become a little slower than the other one is not left for it at once") {
    Faster faster(smallest);
    uses_of_faster(faster, smallest, settled, {40us, 38us});
    CHECK(uses_of_faster(faster, smallest, 100, {40us, 41us}) == 0);
}

TEST_CASE("what a way costs later on counts, once it is known of both") {
    constexpr double later = 1e-3;  // a byte: more than all that is taken now
    Faster faster(smallest);
    uses_of_faster(faster, smallest, settled, {400us, 20us});
    faster.add(Faster::class_of(smallest, smallest), {0, later});
    CHECK(uses_of_faster(faster, smallest, 50, {400us, 20us}) >= 45);
    faster.add(Faster::class_of(smallest, smallest), {later / 2, later});
    CHECK(uses_of_faster(faster, smallest, 50, {400us, 20us}) <= 3 * looks);
    uses_of_faster(faster, 64 * smallest, settled, {400us, 20us});
    CHECK(uses_of_faster(faster, 64 * smallest, 50, {400us, 20us}) >= 45);
}

TEST_CASE("a way that is many times slower is hardly tried, and soon found when it no longer is") {
    constexpr std::size_t small = smallest / 16;
    Faster faster(small);
    uses_of_faster(faster, small, 200, {4000us, 20us});
    const int slow = 5000 - uses_of_faster(faster, small, 5000, {4000us, 20us});
    CHECK(slow >= 2);  // tried all the same
    CHECK(slow <= 5000 / 200);
    CHECK(uses_of_faster(faster, small, 1000, {10us, 20us}) >= 500);
}

TEST_CASE("a way that becomes many times slower is left within a part of a trial") {
    constexpr std::size_t small = smallest / 16;  // 48 are a look
    Faster faster(small);
    uses_of_faster(faster, small, 200, {40us, 20us});
    CHECK(uses_of_faster(faster, small, 200, {40us, 4000us}) >= 200 - 48);
}

TEST_CASE("a way is tried again soon after it was left, and then less and less often") {
    Faster faster(smallest);
    uses_of_faster(faster, smallest, 20, {20us, 40us});
    // For a while it is slow.
    while (uses_of_faster(faster, smallest, 1, {60us, 40us}) == 0) {
    }
    REQUIRE(uses_of_faster(faster, smallest, 8 * looks, {60us, 40us}) > 4 * looks);
    CHECK(uses_of_faster(faster, smallest, 200, {20us, 40us}) >= 150);
    // Where the other one stays the faster one, hardly any trial is left.
    while (uses_of_faster(faster, smallest, 1, {80us, 40us}) == 0) {
    }
    uses_of_faster(faster, smallest, 1000, {80us, 40us});
    CHECK(uses_of_faster(faster, smallest, 1000, {80us, 40us}) >= 980);
}

TEST_CASE("a trial goes on though its first look was interrupted") {
    Faster faster(smallest);
    uses_of_faster(faster, smallest, settled, {40us, 20us});
    int uses = 0;
    while (faster.next(smallest) == 1 && uses < 1000) {
        faster.took(smallest, 1, 20us);
        ++uses;
    }
    REQUIRE(uses < 1000);
    faster.took(smallest, 0, 50ms);
    CHECK(uses_of_faster(faster, smallest, 3 * looks, {5us, 20us}) == 3 * looks);
    CHECK(uses_of_faster(faster, smallest, 1000, {5us, 20us}) >=
          950);  // the change is doubted soon, then seldom
}
