// Copies of every size class and alignment, among them the distances at which string copies are avoided.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "base/copy.hpp"

using namespace collectives;

namespace {

constexpr std::byte guard{0xa5};
constexpr std::size_t page = 4096;

std::byte* page_aligned(std::vector<std::byte>& memory) {
    return memory.data() + (-reinterpret_cast<std::uintptr_t>(memory.data()) % page);
}

template <typename Copy>
void check(Copy copy) {
    constexpr std::size_t longest = 20000;
    std::vector<std::byte> from(longest + 2 * page), to(longest + 3 * page);
    std::mt19937_64 random(1);
    for (std::byte& b : from) b = static_cast<std::byte>(random());
    for (const std::size_t n : {0, 1, 15, 63, 64, 65, 200, 2047, 2048, 2049, 4096, 5001, 20000})
        for (const std::size_t source : {0, 1, 16, 63})
            for (const std::size_t distance : {0, 1, 8, 15, 16, 31, 32, 48, 63, 64, 2048, 4095}) {
                std::fill(to.begin(), to.end(), guard);
                const std::byte* const src = page_aligned(from) + source;
                std::byte* const dst = page_aligned(to) + source + distance;
                copy(dst, src, n);
                CAPTURE(n);
                CAPTURE(source);
                CAPTURE(distance);
                REQUIRE(std::equal(src, src + n, dst));
                const auto is_guard = [](std::byte b) { return b == guard; };
                REQUIRE(std::all_of(to.data(), dst, is_guard));
                REQUIRE(std::all_of(dst + n, to.data() + to.size(), is_guard));
            }
}

}  // namespace

TEST_CASE("copy_bytes copies every byte and no other") { check(copy_bytes); }

TEST_CASE("copy_streaming copies every byte and no other") { check(copy_streaming); }

TEST_CASE("copy_streaming_on copies every byte and no other") {
    check([](std::byte* dst, const std::byte* src, std::size_t n) {
        copy_streaming_on(dst, src, n);
        finish_streaming();
    });
}

TEST_CASE("copy_and_own copies every byte and no other, and leaves the source as it was") {
    check([](std::byte* dst, const std::byte* src, std::size_t n) {
        const std::vector<std::byte> before(src, src + n);
        copy_and_own(dst, const_cast<std::byte*>(src), n);
        REQUIRE(std::equal(before.begin(), before.end(), src));
    });
}

TEST_CASE("a copy onto itself changes nothing") {
    std::vector<std::byte> data(5000);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 7);
    const auto before = data;
    copy_bytes(data.data(), data.data(), data.size());
    copy_streaming(data.data(), data.data(), data.size());
    CHECK(data == before);
}
