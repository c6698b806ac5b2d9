#include "leader/board.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <limits>
#include <new>

#include "base/error.hpp"
#include "base/wait.hpp"

namespace collectives::leader {

struct Board::Head {
    alignas(64) std::atomic<std::uint64_t> taken{0};
    alignas(64) std::atomic<std::uint32_t> changes{0};
    alignas(64) std::uint64_t size = 0;
};

namespace {
constexpr int seals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
}  // namespace

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

std::size_t Board::bytes_for(int size) {
    return sizeof(Head) + static_cast<std::size_t>(size) * depth * sizeof(Entry);
}

Board::Board(int size)
    : size_(size), descriptor_(::memfd_create("collectives", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    if (!descriptor_) throw_system("memfd_create", errno);
    const std::size_t bytes = bytes_for(size);
    if (::ftruncate(descriptor_.get(), static_cast<off_t>(bytes)) != 0) throw_system("ftruncate", errno);
    if (::fcntl(descriptor_.get(), F_ADD_SEALS, seals) != 0) throw_system("fcntl", errno);
    map(bytes);
    // The kernel gives zeros, which is what all entries begin with.
    (new (memory_) Head)->size = static_cast<std::uint64_t>(size);
}

Board::Board(int size, UniqueFd descriptor) : size_(size), descriptor_(std::move(descriptor)) {
    struct stat found{};
    const std::size_t bytes = bytes_for(size);
    if (::fstat(descriptor_.get(), &found) != 0) throw_system("fstat", errno);
    // Without the seals, whoever has the file could make accesses to it end this process.
    if (found.st_size != static_cast<off_t>(bytes) || ::fcntl(descriptor_.get(), F_GET_SEALS) != seals) {
        throw Error(ErrorKind::config_mismatch, "the leader's shared memory has another form");
    }
    map(bytes);
}

Board::~Board() { ::munmap(memory_, bytes_for(size_)); }

void Board::map(std::size_t bytes) {
    void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_.get(), 0);
    if (mapped == MAP_FAILED) throw_system("mmap", errno);
    ::madvise(mapped, bytes, MADV_DONTFORK);
    memory_ = mapped;
}

Entry& Board::entry(int rank, std::uint64_t number) const {
    auto* const entries = reinterpret_cast<Entry*>(static_cast<std::byte*>(memory_) + sizeof(Head));
    return entries[static_cast<std::uint64_t>(rank) * depth + number % depth];
}

std::atomic<std::uint64_t>& Board::taken() const { return static_cast<Head*>(memory_)->taken; }

std::atomic<std::uint32_t>& Board::changes() const { return static_cast<Head*>(memory_)->changes; }

void Board::notify() const {
    changes().fetch_add(1, std::memory_order_release);
    futex_wake(changes());
}

}  // namespace collectives::leader
