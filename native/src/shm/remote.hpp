// Another process's ordinary memory, read and written by the kernel on our behalf (process_vm_readv).
//
// Invariant: it is asked for only where the reader has read the other's process before. That one piece of
// memory is readable says nothing of the next, nor of the next minute, so every reading may fail.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace collectives {

// How a rank reads the memory of other processes: not at all, or so that it takes clearly longer than a copy,
// since the kernel looks up each page, or about as long.
enum class Reads : std::uint32_t { never, slowly, quickly };

class Remote {
  public:
    // `pid`: of the process or any of its threads, as this process sees it; 0 for none.
    explicit Remote(pid_t pid) : pid_(pid) {}

    // Whether all n bytes at the other's `address` could be read.
    bool read(std::byte* data, std::uint64_t address, std::size_t n);
    // Whether all n bytes could be written there.
    bool write(const std::byte* data, std::uint64_t address, std::size_t n);

    // How this process reads others, if the kernel lets it. It is timed once, reading this process itself.
    // COLLECTIVES_PULL: 0 says that no process shall read another one's memory, 1 that it shall as if that
    // were quick.
    static Reads ours();

  private:
    template <typename Call>
    bool move(Call call, std::byte* data, std::uint64_t address, std::size_t n) const;
    // Memory from which, and to which, both copies are fast.
    std::byte* between(std::uint64_t address);

    pid_t pid_;
    std::unique_ptr<std::byte[]> between_;
};

}  // namespace collectives
