#include "shm/arena.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>

#include "base/cpu.hpp"
#include "base/error.hpp"
#include "link/lasting_memory.hpp"
#include "shm/private_pages.hpp"

namespace collectives {

namespace {

constexpr std::uint64_t arena_magic = 0x34616e6572614350;  // "PCarena4"
constexpr std::size_t huge_page = std::size_t{2} << 20;

std::byte* try_to_map(std::size_t n, int flags, int fd) {
    void* base = ::mmap(nullptr, n, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, fd, 0);
    return base == MAP_FAILED ? nullptr : static_cast<std::byte*>(base);
}

std::byte* map_or_throw(std::size_t n, int flags, int fd) {
    std::byte* const base = try_to_map(n, flags, fd);
    if (base == nullptr) throw_system("mapping shared memory", errno);
    return base;
}

UniqueFd make_eventfd() {
    UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!fd) throw_system("eventfd", errno);
    return fd;
}

void initialise(Arena& arena) {
    Header& header = arena.header();
    header.magic = arena_magic;
    if (::getrandom(header.cookie.data(), sizeof(header.cookie), 0) != sizeof(header.cookie)) {
        throw_system("getrandom", errno);
    }
    header.address = reinterpret_cast<std::uintptr_t>(&header);
    // The accumulators of both halves leave half of the second-level cache to the arrays.
    const std::size_t fitting = second_cache() / 4 / short_accumulator;
    header.short_accumulators =
        static_cast<std::uint32_t>(std::clamp(fitting, accumulators, most_accumulators));
}

// Blocks are at least a cache line, so that no two arrays share one; large ones are whole pages, so that
// they can be returned to the kernel, and very large ones can be huge pages.
std::size_t alignment_for(std::size_t n) {
    if (n >= huge_page) return huge_page;
    return n >= page_size ? page_size : cache_line;
}

std::size_t rounded(std::size_t n) {
    n = std::max<std::size_t>(n, 1);
    return round_up(n, n >= page_size ? page_size : cache_line);
}

}  // namespace

std::size_t Geometry::outlet_stride() const {
    return round_up(sizeof(Outlet), page_size) + places_offset() +
           round_up(places_per_link * staging_bytes, page_size);
}

std::size_t Geometry::pool_offset() const {
    return round_up(cast_offset() + cast_slots * staging_bytes, page_size);
}

std::size_t Geometry::accumulators_offset() const {
    return pool_offset() + round_up(sizeof(PoolBoard) + size * sizeof(std::uint64_t), page_size);
}

std::size_t Geometry::flat_offset() const {
    return round_up(accumulators_offset() + 2 * accumulators * staging_bytes, page_size);
}

std::size_t Geometry::flat_data_offset() const {
    const std::size_t lines = flat_slots * flat_lines_per_rank * size;
    return flat_offset() + round_up(sizeof(FlatBoard) + lines * sizeof(FlatLine), page_size);
}

std::size_t Geometry::flat_large_offset() const {
    return round_up(flat_data_offset() + flat_slots * size * on_board, page_size);
}

std::size_t Geometry::flat_given_offset() const {
    return round_up(flat_large_offset() + large_places() * size * slot_bytes, page_size);
}

std::size_t Geometry::given_bytes() const { return std::max<std::size_t>(slot_bytes, on_board); }

std::size_t Geometry::large_places() const {
    if (size == 2) return large_slots;  // two ranks write where they have read, which should be recent
    constexpr std::size_t most = 4 * large_slots;
    return std::bit_floor(std::clamp<std::size_t>(32 / std::max(size, 1U), large_slots, most));
}

std::size_t Geometry::heap_offset() const {
    return round_up(flat_given_offset() + 2 * given_bytes(), huge_page);
}

Arena::Arena(std::byte* base, const Geometry& geometry, UniqueFd fd, UniqueFd wake)
    : base_(base), geometry_(geometry), fd_(std::move(fd)), wake_(std::move(wake)) {
    if (geometry_.heap_bytes > 0) free_.emplace(geometry_.heap_offset(), geometry_.heap_bytes);
}

Arena::~Arena() { ::munmap(base_, geometry_.total()); }

std::shared_ptr<Arena> Arena::create_shared(const Geometry& geometry) {
    UniqueFd fd(::memfd_create("collectives", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd) throw_system("memfd_create", errno);
    if (::ftruncate(fd.get(), static_cast<off_t>(geometry.total())) != 0) throw_system("ftruncate", errno);
    // A peer that could shrink the file could kill this process by SIGBUS.
    if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        throw_system("sealing shared memory", errno);
    }
    std::byte* base = map_or_throw(geometry.total(), MAP_SHARED, fd.get());
    std::shared_ptr<Arena> arena(new Arena(base, geometry, std::move(fd), make_eventfd()));
    initialise(*arena);
    arena->header().reads = Remote::ours();
    return arena;
}

std::shared_ptr<Arena> Arena::map(int fd, const Geometry& geometry,
                                  const std::array<std::uint64_t, 2>& cookie, UniqueFd wake) {
    struct stat info{};
    if (::fstat(fd, &info) != 0) throw_system("fstat", errno);
    const int seals = ::fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || info.st_size != static_cast<off_t>(geometry.total())) {
        throw Error(ErrorKind::transport_unavailable, "a peer's shared memory has another size than agreed");
    }
    std::byte* base = map_or_throw(geometry.total(), MAP_SHARED, fd);
    std::shared_ptr<Arena> arena(new Arena(base, geometry, UniqueFd(), std::move(wake)));
    if (arena->header().magic != arena_magic || arena->header().cookie != cookie) {
        throw Error(ErrorKind::transport_unavailable, "a peer's shared memory is not the one it announced");
    }
    return arena;
}

Outlet& Arena::outlet(int peer) {
    return *reinterpret_cast<Outlet*>(base_ + page_size +
                                      static_cast<std::size_t>(peer) * geometry_.outlet_stride());
}

std::byte* Arena::cast_slot(std::size_t index) {
    return base_ + geometry_.cast_offset() + index * geometry_.staging_bytes;
}

bool Arena::in_heap(const std::byte* data, std::size_t n) const {
    const std::byte* heap = base_ + geometry_.heap_offset();
    return data >= heap && data + n <= heap + geometry_.heap_bytes;
}

std::byte* Arena::allocate(std::size_t n) {
    n = rounded(n);
    const std::size_t alignment = alignment_for(n);
    const std::lock_guard lock(mutex_);
    for (auto block = free_.begin(); block != free_.end(); ++block) {
        const auto [offset, length] = *block;
        const std::size_t start = round_up(offset, alignment);
        if (start + n > offset + length) continue;
        free_.erase(block);
        if (start > offset) free_.emplace(offset, start - offset);
        if (start + n < offset + length) free_.emplace(start + n, offset + length - start - n);
        if (n >= huge_page) ::madvise(base_ + start, n, MADV_HUGEPAGE);
        return base_ + start;
    }
    return nullptr;
}

std::size_t Arena::heap_in_use() {
    const std::lock_guard lock(mutex_);
    std::size_t unused = 0;
    for (const auto& [offset, length] : free_) unused += length;
    return geometry_.heap_bytes - unused;
}

void Arena::release(std::byte* data, std::size_t n) {
    n = rounded(n);
    std::size_t offset = offset_of(data);
    const std::lock_guard lock(mutex_);
    punch(offset, n);
    // Peers cannot see withdrawn memory, so it is not used again.
    if (is_withdrawn(offset, n)) return;
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && next->first == offset + n) {
        n += next->second;
        next = free_.erase(next);
    }
    if (next != free_.begin()) {
        const auto previous = std::prev(next);
        if (previous->first + previous->second == offset) {
            offset = previous->first;
            n += previous->second;
            free_.erase(previous);
        }
    }
    free_.emplace(offset, n);
}

void Arena::punch(std::size_t offset, std::size_t n) {
    if (n < page_size) return;
    if (fd_) {
        ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                    static_cast<off_t>(n));
    }
    if (!fd_ || is_withdrawn(offset, n)) ::madvise(base_ + offset, n, MADV_DONTNEED);
}

bool Arena::is_withdrawn(std::size_t offset, std::size_t n) const {
    const auto after = withdrawn_.lower_bound(offset + n);
    return after != withdrawn_.begin() && std::prev(after)->second > offset;
}

bool Arena::withdraw(std::byte* data, std::size_t n) {
    if (!fd_ || n == 0) return true;  // no other process maps it
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::lock_guard lock(mutex_);
    const std::size_t end = round_up(offset_of(data) + n, page);
    // Skip pages that are private already: their contents are not those of the file.
    for (std::size_t at = offset_of(data) / page * page; at < end;) {
        const auto next = withdrawn_.upper_bound(at);
        if (next != withdrawn_.begin() && std::prev(next)->second > at) {
            at = std::prev(next)->second;
            continue;
        }
        const std::size_t stop = next == withdrawn_.end() ? end : std::min(end, next->first);
        LastingMemory::of_process().end_pages(
            {base_ + at, stop - at});  // a device would go on with the old ones
        if (!make_private(base_ + at, stop - at, fd_.get(), at)) return false;
        withdrawn_.emplace(at, stop);
        at = stop;
    }
    return true;
}

}  // namespace collectives
