// The heap of an arena: no overlap, reuse, and merging back to one piece.
#include <doctest/doctest.h>

#include <random>
#include <set>

#include "arena.hpp"
#include "error.hpp"

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
    const auto arena = Arena::create_private(geometry());
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
