// Ends the sleep of a rank of this process.
#pragma once

#include "base/export.hpp"

namespace collectives {

class COLLECTIVES_API Waker {
  public:
    virtual ~Waker() = default;
    // From any thread: end the sleep, or the one that is about to begin. The caller has first stored what the
    // sleeper looks at before it sleeps. Costs one load while the rank is awake.
    virtual void ring() = 0;
};

}  // namespace collectives
