// What the kernel says of memory whose pages this process has asked for.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/utsname.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "shm/huge_pages.hpp"

using namespace collectives;

namespace {

constexpr std::size_t size = 16 << 20;

struct Memory {
    explicit Memory(int advice)
        : data(static_cast<std::byte*>(
              ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
        ::madvise(data, size, advice);
        std::memset(data, 1, size);
    }
    ~Memory() { ::munmap(data, size); }
    std::byte* data;
};

// Kilobytes of this process's memory that the kernel has put into huge pages.
long huge_kilobytes() {
    std::ifstream told("/proc/self/smaps_rollup");
    for (std::string word; told >> word;) {
        long n = 0;
        if (word == "AnonHugePages:" && told >> n) return n;
    }
    return 0;
}

// Whether the kernel tells which pages are huge: since Linux 6.7.
bool says_so() {
    utsname about{};
    int major = 0, minor = 0;
    ::uname(&about);
    std::sscanf(about.release, "%d.%d", &major, &minor);
    return major > 6 || (major == 6 && minor >= 7);
}

}  // namespace

TEST_CASE("small pages are not huge") {
    const Memory memory(MADV_NOHUGEPAGE);
    CHECK_FALSE(lies_in_huge_pages(memory.data, size));
    CHECK_FALSE(lies_in_huge_pages(memory.data + 16, 1));
}

TEST_CASE("huge pages are, where the kernel gives them and says so") {
    const long before = huge_kilobytes();
    const Memory memory(MADV_HUGEPAGE);
    // All but what is left at both ends of the memory; less where the machine has none left.
    const bool given = huge_kilobytes() - before >= 12 << 10;
    CHECK(lies_in_huge_pages(memory.data + (4 << 20) + 16, 1 << 20) == (given && says_so()));
    CHECK(lies_in_huge_pages(memory.data, size) == (given && says_so()));
}

TEST_CASE("memory that is not there is in no huge page") {
    CHECK_FALSE(lies_in_huge_pages(nullptr, 1 << 20));
}
