#include "remote.hpp"

#include <sys/uio.h>

#include <cerrno>

namespace vm_write {

std::atomic<std::uint64_t> payload_written{0};

int compare(pid_t pid, std::uint64_t address, std::span<const std::uint64_t, 2> expected) {
    std::array<std::uint64_t, 2> found{};
    const iovec here{found.data(), sizeof(found)};
    const iovec there{reinterpret_cast<void*>(address), sizeof(found)};
    const ssize_t n = ::process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (n < 0) return errno;
    const bool same = n == sizeof(found) && found[0] == expected[0] && found[1] == expected[1];
    return same ? 0 : EXDEV;
}

std::size_t Remote::write(std::span<const Part> parts) {
    std::size_t total = 0;
    for (const Part& part : parts) {
        for (std::size_t done = 0; done < part.length && error_ == 0;) {
            const iovec here{static_cast<char*>(const_cast<void*>(part.data)) + done, part.length - done};
            const iovec there{reinterpret_cast<void*>(part.address + done), part.length - done};
            const ssize_t n = ::process_vm_writev(pid_, &here, 1, &there, 1, 0);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) error_ = n < 0 ? errno : EFAULT;
            if (n > 0) done += static_cast<std::size_t>(n), total += static_cast<std::size_t>(n);
        }
        // What comes later is not seen earlier, whatever the processor.
        std::atomic_thread_fence(std::memory_order_seq_cst);
    }
    return total;
}

bool Remote::read(std::uint64_t address, std::uint64_t& word) {
    const iovec here{&word, sizeof(word)};
    const iovec there{reinterpret_cast<void*>(address), sizeof(word)};
    if (::process_vm_readv(pid_, &here, 1, &there, 1, 0) == sizeof(word)) return true;
    if (error_ == 0) error_ = errno;
    return false;
}

}  // namespace vm_write
