#include "core/memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <vector>

namespace collectives {

ArenaUse use_of(Arena& arena) {
    const Geometry& geometry = arena.geometry();
    ArenaUse use;
    use.mapped = geometry.heap_offset();
    use.staging = geometry.size * (geometry.link_staging() + places_per_link * geometry.staging_bytes) +
                  cast_slots * geometry.staging_bytes;
    use.heap = arena.heap_in_use();
    std::vector<unsigned char> pages(use.mapped / page_size);
    if (::mincore(&arena.header(), use.mapped, pages.data()) == 0) {
        const auto present =
            std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; });
        use.touched = static_cast<std::size_t>(present) * page_size;
    }
    return use;
}

}  // namespace collectives
