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

// From now on, kernels and streams of `context` may use memory of `other`'s device, by its address in this
// process. That goes for memory of cuMemAlloc, and not for mapped or pooled memory, whose access is set for
// each allocation. Throws Error if the devices do not reach each other. Both contexts have to stay.
void enable_peer_access(const PrimaryContext& context, const PrimaryContext& other);

}  // namespace collectives::cuda
