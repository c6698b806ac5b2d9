#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "shm/remote.hpp"

using collectives::Reads;
using collectives::Remote;

TEST_CASE("memory of another process is read and written as it is there, or not at all") {
    std::vector<int> values(100'000);
    std::iota(values.begin(), values.end(), 7);
    const std::size_t n = values.size() * sizeof(int);
    const auto address = reinterpret_cast<std::uintptr_t>(values.data());
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
        for (int& value : values) value = -value;  // its own copy now
        char done = 1;
        if (::write(ends[1], &done, 1) != 1) ::_exit(1);
        ::pause();
        ::_exit(0);
    }
    char done = 0;
    REQUIRE(::read(ends[0], &done, 1) == 1);
    std::vector<int> got(values.size());
    auto* const data = reinterpret_cast<std::byte*>(got.data());
    // A parent may read its child.
    REQUIRE(Remote(child).read(data, address, n));
    CHECK(got.front() == -7);
    CHECK(got.back() == -100'006);
    CHECK_FALSE(Remote(child).read(data, 64, n));
    CHECK_FALSE(Remote(0).read(data, address, n));
    // And write to it.
    got.front() = 5;
    REQUIRE(Remote(child).write(data, address, n));
    got.front() = 6;
    REQUIRE(Remote(child).read(data, address, n));
    CHECK(got.front() == 5);
    CHECK(values.front() == 7);
    CHECK_FALSE(Remote(child).write(data, 64, n));
    // Also through memory in between, where a copy straight to there would be slow, and next to its edges.
    Remote remote(child);
    constexpr std::size_t page = 4096;
    const std::size_t part = n - 2 * page;
    std::vector<std::byte> there(n), here(n);
    REQUIRE(remote.read(there.data(), address, n));
    for (const std::size_t distance : {0, 1, 16, 31, 63, 64}) {
        CAPTURE(distance);
        std::byte* const to = here.data() + 16;  // `distance` after its source, modulo a page
        const std::size_t from = (reinterpret_cast<std::uintptr_t>(to) - address - distance) % page;
        std::fill(here.begin(), here.end(), std::byte{0xa5});
        REQUIRE(remote.read(to, address + from, part));
        CHECK(std::equal(to, to + part, there.begin() + static_cast<std::ptrdiff_t>(from)));
        CHECK(to[-1] == std::byte{0xa5});
        CHECK(to[part] == std::byte{0xa5});
        // The other way it is the source that lies before.
        const std::size_t at = (reinterpret_cast<std::uintptr_t>(to) - address + distance) % page;
        for (std::size_t i = 0; i < part; ++i) to[i] = static_cast<std::byte>(i * 7 + distance);
        std::copy(to, to + part, there.begin() + static_cast<std::ptrdiff_t>(at));
        REQUIRE(remote.write(to, address + at, part));
        std::vector<std::byte> now(n);
        REQUIRE(remote.read(now.data(), address, n));
        CHECK(now == there);
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    CHECK_FALSE(Remote(child).read(data, address, n));
    ::close(ends[0]);
    ::close(ends[1]);
}

TEST_CASE("how a process reads others is found once, unless the environment says it") {
    ::unsetenv("COLLECTIVES_PULL");
    const Reads found = Remote::ours();
    CHECK(found != Reads::never);
    CHECK(Remote::ours() == found);
    ::setenv("COLLECTIVES_PULL", "0", 1);
    CHECK(Remote::ours() == Reads::never);
    ::setenv("COLLECTIVES_PULL", "1", 1);
    CHECK(Remote::ours() == Reads::quickly);
    ::unsetenv("COLLECTIVES_PULL");
    CHECK(Remote::ours() == found);
}
