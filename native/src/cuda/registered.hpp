// Host memory that a device can read and write.
//
// Invariant: the memory stays registered as long as the object exists; its owner keeps it mapped as long.
#pragma once

#include <cstddef>
#include <memory>

#include "cuda/api.hpp"
#include "cuda/context.hpp"

namespace collectives::cuda {

class RegisteredMemory {
  public:
    // Registers memory for all devices, such as a mapping of a memfd, which two processes may register at the
    // same time. Throws Error.
    RegisteredMemory(std::shared_ptr<const PrimaryContext> context, void* data, std::size_t bytes);
    RegisteredMemory(const RegisteredMemory&) = delete;
    RegisteredMemory& operator=(const RegisteredMemory&) = delete;
    ~RegisteredMemory();

    // Where the device of the context finds it.
    Pointer on_device() const { return on_device_; }

  private:
    std::shared_ptr<const PrimaryContext> context_;
    void* data_;
    Pointer on_device_ = 0;
};

}  // namespace collectives::cuda
