#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "link/lasting_memory.hpp"

using namespace collectives;

namespace {

struct Keeper final : LastingMemory::Keeper {
    void forget(std::uint64_t stretch) override { forgotten.push_back(stretch); }
    std::vector<std::uint64_t> forgotten;
};

LastingMemory& memory() { return LastingMemory::of_process(); }

std::shared_ptr<Keeper> keeper() {
    auto made = std::make_shared<Keeper>();
    memory().add(made);
    return made;
}

}  // namespace

TEST_CASE("a stretch is found by any bytes that lie in it, until it ends") {
    std::array<std::byte, 100> bytes{};
    const std::span all(bytes);
    const auto kept = keeper();
    const std::uint64_t id = memory().begin(all.subspan(10, 50));
    CHECK(memory().find(all.subspan(10, 50))->id == id);
    CHECK(memory().find(all.subspan(59, 1))->bytes.data() == bytes.data() + 10);
    CHECK(!memory().find(all.subspan(9, 10)));
    CHECK(!memory().find(all.subspan(50, 11)));
    CHECK(!memory().find(all.subspan(60, 1)));
    CHECK(!memory().find(all.subspan(20, 0)));
    CHECK(memory().lasts(id));
    memory().end(id);
    memory().end(id);
    CHECK_FALSE(memory().lasts(id));
    CHECK(!memory().find(all.subspan(20, 1)));
    CHECK(kept->forgotten == std::vector<std::uint64_t>{id});
}

TEST_CASE("memory has one owner: what overlaps a new stretch ends, and nothing else") {
    std::array<std::byte, 100> bytes{};
    const std::span all(bytes);
    const auto kept = keeper();
    std::vector<std::uint64_t> ids;
    for (std::size_t at = 0; at < 100; at += 20) ids.push_back(memory().begin(all.subspan(at, 20)));
    const std::uint64_t over_three = memory().begin(all.subspan(39, 22));
    CHECK(kept->forgotten == std::vector<std::uint64_t>{ids[3], ids[2], ids[1]});
    CHECK(memory().find(all.subspan(0, 20))->id == ids[0]);
    CHECK(memory().find(all.subspan(39, 22))->id == over_three);
    CHECK(memory().find(all.subspan(80, 20))->id == ids[4]);
    CHECK(!memory().find(all.subspan(20, 1)));
    memory().end_overlapping(all.subspan(60, 21));
    CHECK(!memory().find(all.subspan(39, 1)));
    CHECK(!memory().find(all.subspan(80, 1)));
    memory().end(ids[0]);
    CHECK(kept->forgotten.size() == 6);
}

TEST_CASE("memory of the library ends with its pages, but not because a caller announces nothing") {
    std::array<std::byte, 90> bytes{};
    const std::span all(bytes);
    const auto kept = keeper();
    LastingBlock block(all.subspan(30, 30));
    const std::uint64_t before = memory().begin(all.first(30));
    memory().end_overlapping(all.subspan(20, 70));
    CHECK(kept->forgotten == std::vector<std::uint64_t>{before});
    const auto found = memory().find(all.subspan(30, 30));
    REQUIRE(found);
    LastingBlock moved = std::move(block);
    CHECK(memory().find(all.subspan(30, 30))->id == found->id);
    SUBCASE("other pages") {
        memory().end_pages(all.subspan(59, 10));
        moved = LastingBlock(all.subspan(30, 30));  // the old one has nothing to end any more
    }
    SUBCASE("the end of the block") {
        moved.end();
        CHECK(!memory().find(all.subspan(30, 1)));
    }
    CHECK(kept->forgotten == std::vector<std::uint64_t>{before, found->id});
}

TEST_CASE("a keeper that is gone is not asked") {
    std::array<std::byte, 8> bytes{};
    keeper();
    memory().end(memory().begin(bytes));
}

TEST_CASE("in a forked process nothing is announced, and nothing ends") {
    std::array<std::byte, 8> bytes{};
    const auto kept = keeper();
    const std::uint64_t id = memory().begin(bytes);
    const pid_t child = ::fork();
    if (child == 0) {
        memory().end(id);
        const bool is_silent = kept->forgotten.empty() && memory().begin(bytes) == 0 && !memory().find(bytes);
        ::_exit(is_silent ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(memory().find(bytes)->id == id);
    memory().end(id);
}

TEST_CASE("threads announce memory of their own at the same time") {
    const auto use = [] {
        std::vector<std::byte> bytes(64);
        for (int i = 0; i < 10'000; ++i) {
            const std::uint64_t id = memory().begin(bytes);
            const auto found = memory().find(bytes);
            if (!found || found->id != id) FAIL("not found");
            memory().end(id);
        }
    };
    std::thread other(use);
    use();
    other.join();
}
