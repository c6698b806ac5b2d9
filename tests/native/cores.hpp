// On which cores the calling thread may run.
#pragma once

#include <doctest/doctest.h>
#include <sched.h>

namespace collectives::testing {

inline void bind_to(int core) {
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(core, &only);
    REQUIRE(::sched_setaffinity(0, sizeof(only), &only) == 0);
}

}  // namespace collectives::testing
