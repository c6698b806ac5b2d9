#include "shm/memory.hpp"

#include <algorithm>

#include "base/cpu.hpp"
#include "base/error.hpp"
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

GroupMemory& memory_of(const Setup& setup, bool across_processes) {
    GroupMemory& memory = setup.commons->get<GroupMemory>([&] {
        Geometry geometry = geometry_for(setup.size, setup.segment);
        if (setup.large_maps) geometry.heap_bytes = heap_reserve(geometry);
        return new GroupMemory{across_processes ? Arena::create_shared(geometry)
                                                : Arena::create_private(geometry)};
    });
    if (across_processes && memory.arena->fd() < 0) {
        throw Error(ErrorKind::invalid, "listen for processes before threads");
    }
    return memory;
}

}  // namespace collectives
