// The heap of an arena: no overlap, reuse, and merging back to one piece.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <set>
#include <span>
#include <thread>

#include "base/error.hpp"
#include "link/lasting_memory.hpp"
#include "shm/arena.hpp"

using namespace collectives;

namespace {

Geometry geometry() {
    Geometry geometry;
    geometry.size = 4;
    geometry.slot_bytes = 4096;
    geometry.staging_bytes = 8192;
    geometry.heap_bytes = 64 << 20;
    return geometry;
}

}  // namespace

TEST_CASE("blocks do not overlap, are aligned, and come back") {
    const auto arena = Arena::create_shared(geometry());
    std::mt19937 random(1);
    std::map<std::byte*, std::size_t> held;
    for (int i = 0; i < 2000; ++i) {
        if (held.size() > 40 || (!held.empty() && random() % 2 == 0)) {
            const auto victim = std::next(held.begin(), static_cast<long>(random() % held.size()));
            arena->release(victim->first, victim->second);
            held.erase(victim);
            continue;
        }
        const std::size_t n = random() % (std::size_t{1} << (random() % 21));
        std::byte* block = arena->allocate(n);
        REQUIRE(block != nullptr);
        REQUIRE(reinterpret_cast<std::uintptr_t>(block) % 64 == 0);
        REQUIRE(arena->in_heap(block, n));
        const auto next = held.lower_bound(block);
        if (next != held.end()) REQUIRE(block + std::max<std::size_t>(n, 1) <= next->first);
        if (next != held.begin()) REQUIRE(std::prev(next)->first + std::prev(next)->second <= block);
        held.emplace(block, n);
    }
    for (const auto& [block, n] : held) arena->release(block, n);
    std::byte* all = arena->allocate(64 << 20);
    CHECK(all != nullptr);
    CHECK(arena->allocate(1) == nullptr);
}

TEST_CASE("a peer maps the same memory, and nothing else") {
    const auto own = Arena::create_shared(geometry());
    const auto peer = Arena::map(own->fd(), geometry(), own->header().cookie, UniqueFd());
    std::byte* data = own->allocate(100);
    data[5] = std::byte{42};
    CHECK(peer->at(own->offset_of(data))[5] == std::byte{42});
    CHECK_THROWS_AS(Arena::map(own->fd(), geometry(), {1, 2}, UniqueFd()), Error);
    Geometry other = geometry();
    other.heap_bytes *= 2;
    CHECK_THROWS_AS(Arena::map(own->fd(), other, own->header().cookie, UniqueFd()), Error);
}

TEST_CASE("who still writes to memory that was withdrawn reaches nobody") {
    const auto own = Arena::create_shared(geometry());
    const auto peer = Arena::map(own->fd(), geometry(), own->header().cookie, UniqueFd());
    constexpr std::size_t n = 10 * page_size;
    std::byte* const data = own->allocate(n);
    std::byte* const theirs = peer->at(own->offset_of(data));
    std::fill_n(data, n, std::byte{1});
    std::fill_n(theirs + n / 2, n / 2, std::byte{2});
    CHECK(data[n - 1] == std::byte{2});
    // Some bytes in the middle of a page, then some beside and around them: what was changed between stays.
    REQUIRE(own->withdraw(data + 3 * page_size + 100, 200));
    data[3 * page_size] = std::byte{3};
    REQUIRE(own->withdraw(data + 3 * page_size + 500, 2 * page_size));
    REQUIRE(own->withdraw(data + page_size, 8 * page_size));
    std::fill_n(theirs, n, std::byte{9});
    CHECK(data[page_size - 1] == std::byte{9});  // not withdrawn
    CHECK(data[9 * page_size] == std::byte{9});
    CHECK(data[3 * page_size] == std::byte{3});
    for (std::size_t at = page_size; at < 9 * page_size; ++at) {
        if (at != 3 * page_size) REQUIRE(data[at] == (at < n / 2 ? std::byte{1} : std::byte{2}));
    }
    std::fill_n(data, n, std::byte{4});
    CHECK(theirs[2 * page_size] == std::byte{9});
    // Nobody gets memory that peers do not see.
    own->release(data, n);
    for (std::byte* next = own->allocate(n); next != nullptr; next = own->allocate(n)) {
        REQUIRE((next + n <= data || next >= data + n));
    }
}

TEST_CASE("nobody keeps a registration of memory that was withdrawn") {
    const auto own = Arena::create_shared(geometry());
    const std::size_t n = 4 * page_size;
    const std::span block(own->allocate(n), n);
    const LastingBlock lasting(block);
    REQUIRE(LastingMemory::of_process().find(block));
    REQUIRE(own->withdraw(block.data() + page_size, 10));
    CHECK(!LastingMemory::of_process().find(block));
}

TEST_CASE("no store of the owner's own threads is lost while memory is withdrawn") {
    for (int round = 0; round < 20; ++round) {
        const auto own = Arena::create_shared(geometry());
        constexpr std::size_t n = std::size_t{4} << 20;
        std::byte* const data = own->allocate(n);
        std::atomic<bool> started{false}, stop{false};
        bool lost = false;
        std::thread writer([&] {
            for (std::uint64_t value = 1; !stop.load(std::memory_order_relaxed) && !lost; ++value) {
                for (std::size_t at = 0; at < n; at += page_size) {
                    const std::atomic_ref<std::uint64_t> word(reinterpret_cast<std::uint64_t&>(data[at]));
                    lost = lost || word.load(std::memory_order_relaxed) != value - 1;
                    word.store(value, std::memory_order_relaxed);
                }
                started.store(true, std::memory_order_relaxed);
            }
        });
        while (!started.load(std::memory_order_relaxed)) std::this_thread::yield();
        CHECK(own->withdraw(data, n));
        stop.store(true, std::memory_order_relaxed);
        writer.join();
        REQUIRE_FALSE(lost);
    }
}

TEST_CASE("operations that follow each other have other places, however many ranks there are") {
    for (std::uint32_t size = 1; size <= 300; ++size) {
        Geometry shape = geometry();
        shape.size = size;
        const std::size_t places = shape.large_places();
        CAPTURE(size);
        CHECK(places >= large_slots);
        CHECK(places % large_slots == 0);
        CHECK(places * size <= std::max<std::size_t>(32, large_slots * size));
        CHECK(shape.heap_offset() >= shape.flat_large_offset() + places * size * shape.slot_bytes);
    }
}
