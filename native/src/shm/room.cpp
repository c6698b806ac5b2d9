#include "shm/room.hpp"

#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

namespace collectives {

namespace {

constexpr std::size_t unlimited = ~std::size_t{0};
constexpr std::size_t heap_unit = std::size_t{2} << 20;
// The most address space that all arenas together reserve.
constexpr std::size_t most_reserved = std::size_t{16} << 40;
// Address space that is left for stacks of threads, and for other maps of the program.
constexpr std::size_t left_over = std::size_t{64} << 20;

std::size_t limit_of(__rlimit_resource_t resource) {
    rlimit limit{};
    if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return unlimited;
    return limit.rlim_cur;
}

// Bytes of address space in use; 0 if unknown.
std::size_t mapped() {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/self/statm", "re"),
                                                               std::fclose);
    unsigned long pages = 0;
    if (!file || std::fscanf(file.get(), "%lu", &pages) != 1) return 0;
    return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

std::string too_little(const char* what, const char* flag, std::size_t limit, std::size_t needed) {
    constexpr std::size_t mib = 1 << 20;
    return std::string(what) + " is limited to " + std::to_string(limit / mib) + " MiB (ulimit -" + flag +
           "), and shared memory needs " + std::to_string((needed + mib - 1) / mib) + " MiB";
}

}  // namespace

std::optional<std::string> why_no_room(const Geometry& geometry) {
    const std::size_t each = geometry.heap_offset();
    const std::size_t file = limit_of(RLIMIT_FSIZE);
    if (file < each) return too_little("the size of a file", "f", file, each);
    const std::size_t space = limit_of(RLIMIT_AS);
    const std::size_t needed = mapped() + geometry.size * each + left_over;
    if (space != unlimited && space < needed) return too_little("address space", "v", space, needed);
    return std::nullopt;
}

std::size_t heap_reserve(const Geometry& geometry) {
    struct sysinfo info{};
    // Peers map the heap, too, so a process whose address space is limited has none.
    if (::sysinfo(&info) != 0 || limit_of(RLIMIT_AS) != unlimited) return 0;
    const std::size_t memory = static_cast<std::size_t>(info.totalram) * info.mem_unit;
    const std::size_t file = limit_of(RLIMIT_FSIZE);
    const std::size_t room = file - std::min(file, geometry.heap_offset());
    const std::size_t share = most_reserved / std::max<std::size_t>(geometry.size, 1);
    return std::min({memory, share, room}) / heap_unit * heap_unit;
}

}  // namespace collectives
