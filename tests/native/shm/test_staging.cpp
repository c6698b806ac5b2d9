// Staged bytes arrive, whichever way is taken, and what readers say of the ways decides between them.
#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <vector>

#include "base/cpu.hpp"
#include "shm/staging.hpp"

using namespace collectives;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t large = 64 << 10;

std::size_t class_of_large() {
    std::size_t found = ReadCosts::classes;
    ReadCosts costs{};
    costs.note(Staged::cached, large, large, 1ms);
    for (std::size_t c = 0; c < ReadCosts::classes; ++c) {
        if (costs.of(c)[0] > 0) found = c;
    }
    return found;
}

// How often bytes went around the caches, of so many times.
int streamed(StagingCopy& copy, const ReadCosts& reader, int times) {
    std::vector<std::byte> src(large);
    std::vector<std::byte> dst(large);
    int found = 0;
    for (int i = 0; i < times; ++i) {
        std::memset(src.data(), i, large);
        const Staged how = copy(dst.data(), src.data(), large, reader, false);
        REQUIRE(dst == src);
        REQUIRE(how != Staged::unsaid);
        found += how == Staged::streamed ? 1 : 0;
    }
    return found;
}

}  // namespace

TEST_CASE("small copies are not timed, and nobody notes how they were made") {
    StagingCopy copy;
    const std::vector<std::byte> src(2 << 10, std::byte{7});
    std::vector<std::byte> dst(src.size());
    CHECK(copy(dst.data(), src.data(), src.size(), ReadCosts{}, false) == Staged::unsaid);
    CHECK(dst == src);
    CHECK_FALSE(ReadCosts::are_noted(Staged::unsaid, large));
    CHECK_FALSE(ReadCosts::are_noted(Staged::cached, src.size()));
    CHECK_FALSE(ReadCosts::are_noted(static_cast<Staged>(7), large));  // as a broken peer might say
    CHECK(ReadCosts::are_noted(Staged::streamed, large));
}

TEST_CASE("what one rank alone reads is handed over where processors do that, and arrives") {
    ReadCosts reader{};
    reader.note(Staged::streamed, large, large, 10s);
    reader.note(Staged::handed_over, large, large, 1us);
    const Staged cached = hands_lines_over() ? Staged::handed_over : Staged::cached;
    for (const bool alone : {false, true}) {
        StagingCopy copy;
        std::vector<std::byte> src(large);
        std::vector<std::byte> staged(large);
        std::vector<std::byte> dst(large);
        int in_caches = 0;
        for (int i = 0; i < 400; ++i) {
            std::memset(src.data(), i, large);
            const Staged how = copy(staged.data(), src.data(), large, reader, alone);
            if (how != Staged::streamed) REQUIRE(how == (alone ? cached : Staged::cached));
            in_caches += how == Staged::streamed ? 0 : 1;
            read_staged(how, i % 2 == 0 ? Stores::cached : Stores::streaming, dst.data(), staged.data(),
                        large);
            REQUIRE(dst == src);
            REQUIRE(staged == src);
        }
        CHECK(in_caches >= 300);
    }
}

TEST_CASE("the way that is dear to read is left, however fast it is written") {
    for (const Staged dear : {Staged::streamed, Staged::cached}) {
        const Staged cheap = dear == Staged::streamed ? Staged::cached : Staged::streamed;
        ReadCosts reader{};
        reader.note(dear, large, large, 10s);
        reader.note(cheap, large, large, 1us);
        StagingCopy copy;
        const int around = streamed(copy, reader, 400);
        CHECK((dear == Staged::streamed ? around : 400 - around) <= 100);  // it is tried at first
    }
}

TEST_CASE("costs follow what is seen, and one interruption changes little") {
    const std::size_t c = class_of_large();
    REQUIRE(c < ReadCosts::classes);
    ReadCosts costs{};
    CHECK(costs.of(c)[0] == 0);
    for (int i = 0; i < 50; ++i) costs.note(Staged::cached, large, large, 10us);
    const double known = costs.of(c)[0];
    CHECK(known == doctest::Approx(10e-6 / large));
    CHECK(costs.of(c)[1] == 0);
    costs.note(Staged::cached, large, large, 50ms);
    CHECK(costs.of(c)[0] <= 1.3 * known);
    for (int i = 0; i < 50; ++i) costs.note(Staged::cached, large, large, 40us);
    CHECK(costs.of(c)[0] == doctest::Approx(40e-6 / large).epsilon(0.01));
    // A part of what was staged at once counts for its size, not for the part's.
    for (int i = 0; i < 50; ++i) costs.note(Staged::cached, large, large / 4, 40us);
    CHECK(costs.of(c)[0] == doctest::Approx(160e-6 / large).epsilon(0.01));
}
