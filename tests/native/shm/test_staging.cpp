// Staged bytes arrive, whichever stores are used and whoever reads them.
#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "base/cpu.hpp"
#include "shm/staging.hpp"

using namespace collectives;

TEST_CASE("staged bytes arrive in both places, and what readers on one core alone read is marked at times") {
    for (const std::size_t n : {std::size_t{2} << 10, std::size_t{64} << 10}) {
        for (const bool on_one_core : {false, true}) {
            std::vector<std::byte> src(n);
            std::vector<std::byte> staged(n);
            std::vector<std::byte> dst(n);
            StagingCopy stage;
            int owned = 0;
            for (int i = 0; i < 300; ++i) {  // both kinds of stores are tried
                std::memset(src.data(), i, n);
                const Stores stores = i % 2 == 0 ? Stores::cached : Stores::streaming;
                const Staged how = stage(staged.data(), src.data(), n, on_one_core);
                owned += how == Staged::single_core ? 1 : 0;
                read_staged(how, stores, dst.data(), staged.data(), n);
                REQUIRE(dst == src);
                REQUIRE(staged == src);
            }
            CHECK((owned > 0) == (on_one_core && n > 4096 && hands_lines_over()));
        }
    }
}

TEST_CASE("what a broken peer might say of its staging is read all the same") {
    std::vector<std::byte> staged(64 << 10, std::byte{7});
    std::vector<std::byte> dst(staged.size());
    read_staged(static_cast<Staged>(7), Stores::cached, dst.data(), staged.data(), staged.size());
    CHECK(dst == staged);
}
