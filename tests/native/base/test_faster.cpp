// The faster of two modes is found, and found again when they change.
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

// So many uses, of which mode i takes `taken[i]`; how often the one was gone that is the faster.
int uses_of_faster(Faster& faster, std::size_t n, int uses, std::array<std::chrono::microseconds, 2> taken) {
    int found = 0;
    for (int i = 0; i < uses; ++i) {
        const std::size_t mode = faster.next(n);
        REQUIRE(mode < 2);
        faster.took(n, mode, taken[mode]);
        found += taken[mode] <= taken[1 - mode] ? 1 : 0;
    }
    return found;
}

}  // namespace

TEST_CASE("both modes are tried, and the faster one is gone from then on") {
    Faster faster(smallest);
    CHECK(uses_of_faster(faster, smallest, 2 * looks, {40us, 20us}) == looks);
    uses_of_faster(faster, smallest, settled, {40us, 20us});
    CHECK(uses_of_faster(faster, smallest, 1000, {40us, 20us}) >= 950);
}

TEST_CASE("a mode that has become the faster one is found again") {
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
    const std::size_t mode = faster.next(smallest);
    faster.took(smallest, mode, 50ms);
    CHECK(uses_of_faster(faster, smallest, 900, {400us, 20us}) >= 850);
}

TEST_CASE("a mode that is slow for a while, or slow again after it was tried once more, is kept") {
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

TEST_CASE("a mode that has become a little slower than the other one is not left for it at once") {
    Faster faster(smallest);
    uses_of_faster(faster, smallest, settled, {40us, 38us});
    CHECK(uses_of_faster(faster, smallest, 100, {40us, 41us}) == 0);
}

TEST_CASE("a mode is tried again soon after it was left, and then less and less often") {
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
