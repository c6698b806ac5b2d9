#include "shm/huge_pages.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>

#include <array>
#include <cstdint>

#include "base/unique_fd.hpp"

namespace collectives {

namespace {

// As in <linux/fs.h> since Linux 6.7.
struct PageRegion {
    std::uint64_t start;
    std::uint64_t end;
    std::uint64_t categories;
};

struct PagemapScan {
    std::uint64_t size;
    std::uint64_t flags;
    std::uint64_t start;
    std::uint64_t end;
    std::uint64_t walk_end;
    std::uint64_t regions;
    std::uint64_t region_count;
    std::uint64_t max_pages;
    std::uint64_t category_inverted;
    std::uint64_t category_mask;
    std::uint64_t category_anyof_mask;
    std::uint64_t return_mask;
};

constexpr std::uint64_t page_is_huge = 1 << 6;
const unsigned long pagemap_scan = _IOWR('f', 16, PagemapScan);

constexpr std::uint64_t page = 4096;
// Where memory lies in more pieces than that, most of it does not.
constexpr std::size_t most_regions = 16;

}  // namespace

bool lies_in_huge_pages(const std::byte* data, std::size_t n) {
    const UniqueFd map(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
    if (map.get() < 0) return false;
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    std::array<PageRegion, most_regions> regions;
    PagemapScan scan{};
    scan.size = sizeof(scan);
    scan.start = begin / page * page;
    scan.end = (begin + n + page - 1) / page * page;
    scan.regions = reinterpret_cast<std::uintptr_t>(regions.data());
    scan.region_count = regions.size();
    scan.category_mask = scan.return_mask = page_is_huge;
    const int found = ::ioctl(map.get(), pagemap_scan, &scan);
    std::uint64_t huge = 0;
    for (int i = 0; i < found; ++i) {
        const PageRegion& region = regions[static_cast<std::size_t>(i)];
        huge += region.end - region.start;
    }
    return 2 * huge > scan.end - scan.start;
}

}  // namespace collectives
