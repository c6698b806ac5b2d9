// Another process's ordinary memory, read and written by the kernel on our behalf (process_vm_readv).
//
// Invariant: it is used only if the reader has read memory of the other process before. If one piece of
// memory is readable, another piece, or the same piece later, may not be; so every read may fail.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace collectives {

// How a rank reads the memory of other processes: never; slowly, clearly slower than a copy, since the kernel
// looks up each page; or quickly, about as fast as a copy.
enum class Reads : std::uint32_t { never, slowly, quickly };

class Remote {
  public:
    // `pid`: the id of the process or of any of its threads, in this process's namespace; 0 for none.
    explicit Remote(pid_t pid) : pid_(pid) {}

    // Read n bytes at `address` of the other process. Returns whether all could be read.
    bool read(std::byte* data, std::uint64_t address, std::size_t n);
    // Write n bytes to `address` of the other process. Returns whether all could be written.
    bool write(const std::byte* data, std::uint64_t address, std::size_t n);

    // How this process reads other processes, if the kernel allows it. Timed once, by reading memory of this
    // process. COLLECTIVES_PULL=0 forbids reading other processes, 1 omits the timing, as if it were quick.
    static Reads ours();

  private:
    template <typename Call>
    bool move(Call call, std::byte* data, std::uint64_t address, std::size_t n) const;
    // A buffer through which both copies are fast.
    std::byte* between(std::uint64_t address);

    pid_t pid_;
    std::unique_ptr<std::byte[]> between_;
};

}  // namespace collectives
