#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <numeric>
#include <vector>

#include "remote.hpp"

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
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    CHECK_FALSE(Remote(child).read(data, address, n));
    ::close(ends[0]);
    ::close(ends[1]);
}
