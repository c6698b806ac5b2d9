// Copies between the memory of an operation and arrays elsewhere, such as on a device, which go on while the
// operation runs.
//
// Invariant: who runs the operation reads no byte of its input before the byte is there, and names the bytes
// of its output once it does not write them any more. One thread at a time calls. Nothing here blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/export.hpp"

namespace collectives {

class COLLECTIVES_API Transfer {
  public:
    Transfer() = default;
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;
    virtual ~Transfer() = default;

    // How many of the n bytes from `at` on are there. Memory to which nothing is copied is always there.
    virtual std::uint64_t there(const std::byte* at, std::uint64_t n) = 0;
    // The operation has written the n bytes from `at` on for the last time.
    virtual void leave(const std::byte* at, std::uint64_t n) = 0;
    // Whether bytes are still to come. Nothing wakes who waits for them.
    virtual bool is_coming() = 0;
};

}  // namespace collectives
