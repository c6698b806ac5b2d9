// Another process's ordinary memory, read and written by the kernel on our behalf (process_vm_readv).
//
// Invariant: it is asked for only where the reader has read the other's process before. That one piece of
// memory is readable says nothing of the next, nor of the next minute, so every reading may fail.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace collectives {

// How a rank reads the memory of other processes: not at all, or so that it takes longer than a copy, for
// looking up pages, or about as long.
enum class Reads : std::uint32_t { never, slowly, quickly };

// How long the kernel takes to read memory of this process, and a copy of as much beside it, at the least in
// all looks so far.
class ReadingPace {
  public:
    // Up to that many times, until it is surely quick.
    void look(int tries);
    bool is_quick() const;

  private:
    using Seconds = std::chrono::duration<double>;
    Seconds least_ = Seconds::max();
    Seconds least_of_copy_ = Seconds::max();
    int quick_ = 0;
};

// Whether a kernel that was slow is quick after all: what made it slow may have been others, for a moment.
class SecondLook {
  public:
    // Whether n more bytes that it might have read make one due.
    bool is_due(std::uint64_t n);
    // Looks, for a third of a millisecond or less.
    bool finds_quick();

  private:
    std::uint64_t interval_ = std::uint64_t{64} << 20;
    std::uint64_t since_ = 0;
    ReadingPace pace_;
};

class Remote {
  public:
    // `pid`: of the process or any of its threads, as this process sees it; 0 for none.
    explicit Remote(pid_t pid) : pid_(pid) {}

    // Whether all n bytes at the other's `address` could be read.
    bool read(std::byte* data, std::uint64_t address, std::size_t n);
    // Whether all n bytes could be written there.
    bool write(const std::byte* data, std::uint64_t address, std::size_t n);

    // How this process reads others, if the kernel lets it; found by reading itself, once. COLLECTIVES_PULL:
    // 0 says that no process shall read another one's memory, 1 that it shall as if that were quick.
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
