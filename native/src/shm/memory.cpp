#include "shm/memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/cpu.hpp"
#include "base/error.hpp"
#include "link/lasting_memory.hpp"
#include "shm/room.hpp"

namespace collectives {

namespace {

constexpr std::size_t default_slot = 128 << 10;
constexpr std::size_t default_staging = 256 << 10;

}  // namespace

Geometry geometry_for(int size, std::size_t segment) {
    Geometry geometry;
    geometry.size = static_cast<std::uint32_t>(size);
    geometry.slot_bytes = segment > 0 ? std::max(cache_line, round_up(segment, cache_line)) : default_slot;
    geometry.staging_bytes = segment > 0 ? geometry.slot_bytes : default_staging;
    return geometry;
}

GroupMemory::GroupMemory(const Setup& setup, std::shared_ptr<Arena> own)
    : arena_(std::move(own)),
      oversubscribed_(setup.oversubscribed),
      links_(static_cast<std::size_t>(setup.size), nullptr),
      caster_(*this),
      doorbell_(*arena_) {}

std::optional<int> GroupMemory::accuser() const { return accuser_among(arena_->calls(), links_); }

void GroupMemory::mark_closed(std::optional<int> lost) {
    Header& header = arena_->header();
    if (lost) header.lost.store(static_cast<std::uint32_t>(*lost) + 1, std::memory_order_relaxed);
    header.closed.store(1, std::memory_order_release);
}

std::shared_ptr<std::byte> GroupMemory::allocate(std::size_t bytes) {
    std::byte* const data = arena_->allocate(bytes);
    if (data == nullptr) return nullptr;
    LastingMemory& lasting = LastingMemory::of_process();
    const std::uint64_t stretch = lasting.begin({data, bytes}, LastingMemory::Owner::library);
    return {data, [arena = arena_, bytes, stretch, &lasting](std::byte* given) {
                lasting.end(stretch);
                arena->release(given, bytes);
            }};
}

SharedMemoryUse GroupMemory::memory() const {
    const Geometry& geometry = arena_->geometry();
    SharedMemoryUse use;
    use.mapped = geometry.heap_offset();
    use.staging = geometry.size * (geometry.link_staging() + places_per_link * geometry.staging_bytes) +
                  cast_slots * geometry.staging_bytes;
    use.heap = arena_->heap_in_use();
    std::vector<unsigned char> pages(use.mapped / page_size);
    if (::mincore(&arena_->header(), use.mapped, pages.data()) == 0) {
        const auto present =
            std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; });
        use.touched = static_cast<std::size_t>(present) * page_size;
    }
    return use;
}

void GroupMemory::ArenaDoorbell::arm(bool at_descriptor) {
    Header& header = arena_.header();
    seen_ = header.doorbell.load(std::memory_order_acquire);
    const Sleep mode = at_descriptor ? Sleep::on_eventfd : Sleep::on_doorbell;
    // Sequentially consistent, so that this store comes before the last check.
    header.sleeping.store(static_cast<std::uint32_t>(mode), std::memory_order_seq_cst);
}

void GroupMemory::ArenaDoorbell::disarm() {
    arena_.header().sleeping.store(static_cast<std::uint32_t>(Sleep::awake), std::memory_order_relaxed);
}

void GroupMemory::ArenaDoorbell::wait(std::chrono::nanoseconds timeout) {
    futex_wait(arena_.header().doorbell, seen_, timeout);
}

void GroupMemory::ArenaDoorbell::ring() {
    arena_.header().doorbell.fetch_add(1, std::memory_order_release);
    futex_wake(arena_.header().doorbell);
}

std::shared_ptr<GroupMemory> memory_of(const Setup& setup) {
    return setup.commons->get<GroupMemory>([&] {
        Geometry geometry = geometry_for(setup.size, setup.segment);
        if (setup.large_maps) geometry.heap_bytes = heap_reserve(geometry);
        return new GroupMemory(setup, Arena::create_shared(geometry));
    });
}

}  // namespace collectives
