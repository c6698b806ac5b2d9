// Ends the sleep of a rank of this process.
#pragma once

#include "base/export.hpp"

namespace collectives {

class COLLECTIVES_API Waker {
  public:
    virtual ~Waker() = default;
    // End the rank's sleep, or a sleep that is about to begin; from any thread. The caller must first store
    // what the rank checks before it sleeps. Costs one load while the rank is awake.
    virtual void ring() = 0;
};

}  // namespace collectives
