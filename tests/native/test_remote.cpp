#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <numeric>
#include <vector>

#include "remote.hpp"

using collectives::Remote;

TEST_CASE("memory of another process is read as it is there, or not at all") {
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
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    CHECK_FALSE(Remote(child).read(data, address, n));
    ::close(ends[0]);
    ::close(ends[1]);
}

TEST_CASE("memory that the kernel does not read for others is known beforehand") {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    void* const mapping =
        ::mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(mapping != MAP_FAILED);
    auto* const data = static_cast<std::byte*>(mapping);
    CHECK(Remote::can_be_read(data, 3 * page));
    CHECK_FALSE(Remote::can_be_read(data, 0));
    REQUIRE(::mprotect(data + 2 * page, page, PROT_NONE) == 0);
    CHECK_FALSE(Remote::can_be_read(data, 3 * page));
    CHECK(Remote::can_be_read(data, 2 * page));
    REQUIRE(::munmap(mapping, 3 * page) == 0);
    CHECK_FALSE(Remote::can_be_read(data, page));
}
