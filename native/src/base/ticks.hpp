// A clock that takes a few nanoseconds to read. It is the processor's counter if the kernel uses this counter
// itself, because it then has one constant rate on all cores; else CLOCK_MONOTONIC in nanoseconds.
//
// Invariant: the clock never goes back, whichever core reads it. 0 means "no time".
#pragma once

#include <cstdint>
#include <ctime>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace collectives::ticks {

// Whether the clock is the processor's counter; decided once, when the library is loaded.
extern const bool from_counter;

inline std::uint64_t monotonic() {  // nanoseconds
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

inline std::uint64_t now() {
#if defined(__x86_64__)
    if (from_counter) return __rdtsc();
#endif
    return monotonic();
}

// Converts ticks to seconds of CLOCK_MONOTONIC, to within a microsecond for times between the loading of the
// library and the call of `scale`.
struct Scale {
    std::uint64_t origin = 0;  // ticks
    double seconds = 0;        // CLOCK_MONOTONIC at `origin`
    double per_tick = 0;

    double at(std::uint64_t ticks) const {
        return seconds + static_cast<double>(static_cast<std::int64_t>(ticks - origin)) * per_tick;
    }
};
Scale scale();

}  // namespace collectives::ticks
