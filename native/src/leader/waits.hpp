// The waits that ranks which share a device put into streams, by name.
//
// Invariant: no build leaves one out but that for tests (COLLECTIVES_LEFT_OUT_WAITS). There LEFT_OUT_WAIT
// names one, so that a test can show that the wait is needed.
#pragma once

#include <cstdlib>
#include <string_view>

namespace collectives::leader {

inline constexpr std::string_view wait_of_call = "call";      // of a rank's stream, for the kernel
inline constexpr std::string_view wait_of_kernel = "kernel";  // of the kernel, for all ranks' streams
// The same in graphs, where the leader's graph has the kernel.
inline constexpr std::string_view wait_of_graph = "graph";
inline constexpr std::string_view wait_of_leaders_graph = "leader's graph";

#if defined(COLLECTIVES_LEFT_OUT_WAITS)
inline bool is_left_out(std::string_view wait) {
    static const char* const name = std::getenv("LEFT_OUT_WAIT");
    return name != nullptr && wait == name;
}
#else
constexpr bool is_left_out(std::string_view) { return false; }
#endif

}  // namespace collectives::leader
