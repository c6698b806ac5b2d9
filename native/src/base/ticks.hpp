// A clock that costs a few nanoseconds to read: the processor's counter, where the kernel itself trusts that
// it runs at one rate and alike on all cores, else CLOCK_MONOTONIC in nanoseconds.
//
// Invariant: it never goes back, on whichever core it is read. 0 is no time.
#pragma once

#include <cstdint>
#include <ctime>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace collectives::ticks {

// Whether the counter is what is read; found out once, when the library is loaded.
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

// Ticks as seconds of CLOCK_MONOTONIC: between the moment when the library was loaded and that of `scale`,
// within a microsecond.
struct Scale {
    std::uint64_t origin = 0;  // ticks
    double seconds = 0;        // of the clock, then
    double per_tick = 0;

    double at(std::uint64_t ticks) const {
        return seconds + static_cast<double>(static_cast<std::int64_t>(ticks - origin)) * per_tick;
    }
};
Scale scale();

}  // namespace collectives::ticks
