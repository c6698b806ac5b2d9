// Memory of the peer's process, which the kernel writes to on our behalf (process_vm_writev).
//
// Invariant: nothing is written before `is_peer` has said yes, nor after the first failure.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace vm_write {

// Bytes of messages that this process has written to others.
extern std::atomic<std::uint64_t> payload_written;

// Whether these 16 bytes lie at that address of the process: 0, or why that is not known (errno; EXDEV where
// others lie there).
int compare(pid_t pid, std::uint64_t address, std::span<const std::uint64_t, 2> expected);

class Remote {
  public:
    struct Part {
        std::uint64_t address;
        const void* data;
        std::size_t length;
    };

    explicit Remote(pid_t pid) : pid_(pid) {}

    // The parts, in their order. How many bytes were written: fewer only where it failed.
    std::size_t write(std::span<const Part> parts);
    // False where it cannot be read; `error` says why.
    bool read(std::uint64_t address, std::uint64_t& word);
    int error() const { return error_; }  // errno of the first failure; 0: none

  private:
    pid_t pid_;
    int error_ = 0;
};

}  // namespace vm_write
