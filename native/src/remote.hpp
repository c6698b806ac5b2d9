// Another process's ordinary memory, read by the kernel on our behalf (process_vm_readv).
//
// Invariant: it is used only where both sides have seen that it works: the reader has read the other's
// process, and the other can be sure that its memory is of a kind that the kernel reads.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace collectives {

class Remote {
  public:
    // `pid`: as this process sees it; 0 for none.
    explicit Remote(pid_t pid) : pid_(pid) {}

    // Whether all n bytes at the other's `address` could be read.
    bool read(std::byte* data, std::uint64_t address, std::size_t n) const;

    // Whether the kernel reads all kinds of memory in [data, data + n) of this process for others. Looks at
    // both ends: memory that devices have mapped is one mapping.
    static bool can_be_read(const std::byte* data, std::size_t n);
    // COLLECTIVES_PULL=0 says that no process shall read another one's memory.
    static bool is_wanted();

  private:
    pid_t pid_;
};

}  // namespace collectives
