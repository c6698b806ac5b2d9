#include "shm/private_pages.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>

#include "base/page.hpp"

namespace collectives {

namespace {

// Bytes that are copied before the old pages are returned to the kernel.
constexpr std::size_t copied_at_once = 8 << 20;
constexpr int populate_write = 23;  // MADV_POPULATE_WRITE, since Linux 5.14

// Let the kernel copy each page, as it does at a store. The stores here change nothing, and lose no store of
// another thread.
void copy_pages(std::byte* begin, std::size_t n) {
    if (::madvise(begin, n, populate_write) == 0) return;
    for (std::size_t at = 0; at < n; at += page_size) {
        const std::atomic_ref<unsigned char> byte(reinterpret_cast<unsigned char&>(begin[at]));
        unsigned char found = byte.load(std::memory_order_relaxed);
        while (!byte.compare_exchange_weak(found, found, std::memory_order_relaxed)) {
        }
    }
}

}  // namespace

bool make_private(std::byte* begin, std::size_t n, int fd, std::uint64_t offset) {
    constexpr int access = PROT_READ | PROT_WRITE;
    // Map at another address first, since the kernel may refuse; MAP_FIXED, if refused, may leave a hole.
    void* const fresh =
        ::mmap(nullptr, n, access, MAP_PRIVATE | MAP_NORESERVE, fd, static_cast<off_t>(offset));
    if (fresh == MAP_FAILED) return false;
    if (::mremap(fresh, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, begin) == MAP_FAILED) {
        ::munmap(fresh, n);
        return false;
    }
    for (std::size_t at = 0; at < n; at += copied_at_once) {
        const std::size_t part = std::min(copied_at_once, n - at);
        copy_pages(begin + at, part);
        ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset + at),
                    static_cast<off_t>(part));
    }
    return true;
}

}  // namespace collectives
