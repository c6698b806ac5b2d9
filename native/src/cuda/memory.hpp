// Memory of a device that this library allocates for itself.
//
// Invariant: it comes from cuMemAlloc, which other processes can open. It stays allocated as long as the
// object exists.
#pragma once

#include <cstddef>
#include <memory>

#include "cuda/api.hpp"
#include "cuda/context.hpp"

namespace collectives::cuda {

class DeviceMemory {
  public:
    // Not initialised. Throws Error, which names the device and the cure if its memory is full.
    DeviceMemory(std::shared_ptr<const PrimaryContext> context, std::size_t bytes);
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;
    // Nothing on the device may use it any more; the driver waits for what is on the device.
    ~DeviceMemory();

    Pointer address() const { return address_; }
    std::size_t bytes() const { return bytes_; }
    const std::shared_ptr<const PrimaryContext>& context() const { return context_; }

  private:
    std::shared_ptr<const PrimaryContext> context_;
    std::size_t bytes_;
    Pointer address_ = 0;
};

// In the stream: all 32-bit words become `value`. `bytes` is a multiple of 4.
void set_words(StreamHandle stream, Pointer address, std::uint32_t value, std::size_t bytes);
// In the stream: a copy between any two places that the current context reaches.
void copy(StreamHandle stream, Pointer to, Pointer from, std::size_t bytes);

}  // namespace collectives::cuda
