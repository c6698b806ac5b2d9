// The primary context of a device, which all libraries of the process share.
//
// Invariant: a context that this library uses is retained. `Current` restores the caller's context.
#pragma once

#include <memory>

#include "cuda/api.hpp"

namespace collectives::cuda {

class PrimaryContext {
  public:
    // Throws Error. Objects for the same device share one, which is released with the last of them.
    static std::shared_ptr<const PrimaryContext> of(int device);

    PrimaryContext(const PrimaryContext&) = delete;
    PrimaryContext& operator=(const PrimaryContext&) = delete;
    ~PrimaryContext();

    int device() const { return device_; }
    Context handle() const { return handle_; }

  private:
    explicit PrimaryContext(int device);

    int device_;
    DeviceNumber number_ = 0;
    Context handle_ = nullptr;
};

// While it exists, that context is the calling thread's current one.
class Current {
  public:
    explicit Current(const PrimaryContext& context);
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    ~Current();
};

}  // namespace collectives::cuda
