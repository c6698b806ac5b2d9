// Host memory that the ranks which share a device have in common: what each rank's calls are, by number.
//
// Invariant: a rank writes its own row only. An entry is written completely before its number, and is not
// written again before the leader has taken the call. The memory is a memfd without a name, so nothing is
// left behind.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/unique_fd.hpp"
#include "cuda/ipc.hpp"
#include "cuda/kernel_arguments.hpp"

namespace collectives::leader {

// An array of a rank: an allocation, and the place in it. No allocation: the rank has no such array.
struct Place {
    cuda::Exported allocation;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
};

// What has to be the same on all ranks.
struct Description {
    std::uint64_t count = 0;  // see cuda::KernelArguments
    cuda::Form form = cuda::Form::reduce;
    std::uint32_t dtype = 0;
    std::uint32_t op = 0;
    std::uint32_t root = 0;
    std::uint32_t reduces = 0;
    std::uint32_t captured = 0;  // 0, or the number of the captured call, from 1 on

    bool operator==(const Description&) const = default;
};

struct Entry {
    std::atomic<std::uint64_t> number{0};  // of the call that it describes; 0: none yet
    Description description;
    Place in;
    Place out;
};

class Board {
  public:
    // The calls of a rank that the leader has not taken, at most. Streams have room for about a thousand
    // entries on a device, and one that is full may hold up other calls of the driver.
    static constexpr std::uint64_t depth = 64;

    // A new one, on the leader.
    explicit Board(int size);
    // The leader's, by its descriptor. Throws Error if it is not one for `size` ranks.
    Board(int size, UniqueFd descriptor);
    Board(const Board&) = delete;
    Board& operator=(const Board&) = delete;
    ~Board();

    int descriptor() const { return descriptor_.get(); }
    // The entry of call `number` of that rank.
    Entry& entry(int rank, std::uint64_t number) const;
    // How many calls the leader has taken.
    std::atomic<std::uint64_t>& taken() const;
    // Changes with every call that is published and taken, see futex_wait.
    std::atomic<std::uint32_t>& changes() const;
    void notify() const;

  private:
    struct Head;
    static std::size_t bytes_for(int size);
    void map(std::size_t bytes);

    int size_;
    UniqueFd descriptor_;
    void* memory_ = nullptr;
};

}  // namespace collectives::leader
