// What this processor offers: instruction sets for the kernels, fast string copies, a spin-wait hint.
//
// Invariant: an instruction set is reported only if both the processor and the operating system support it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.hpp"

namespace collectives {

// Bytes that cores transfer to each other at a time.
inline constexpr std::size_t cache_line = 64;

// The forms in which kernels are compiled, worst first. On arm64 only the baseline (NEON) exists.
enum class Isa : std::uint8_t { baseline, avx2, avx512 };

// "sse2" or "neon" for the baseline, "avx2", "avx512".
COLLECTIVES_API std::string_view name(Isa isa);

// Whether the kernels of this form can run here.
COLLECTIVES_API bool has(Isa isa);

// The form in use: the best one, or the form that the environment variable COLLECTIVES_ISA (baseline, avx2,
// avx512) names. Decided at the first call; throws std::invalid_argument if the variable names an unknown
// form or a form that cannot run here.
COLLECTIVES_API Isa selected_isa();

// Names of the forms that the kernels may use, best last.
COLLECTIVES_API std::vector<std::string> cpu_features();

// Whether `rep movsb` copies whole cache lines at once (ERMS or FSRM).
COLLECTIVES_API bool has_fast_string_copy();

// Whether `rep movsb` is slow if its destination is less than a line after its source, modulo the page size:
// each load then waits for earlier stores (AMD's Zen).
COLLECTIVES_API bool string_copy_seems_to_overlap();

// Whether a core that reads a line which another core has written also gets the right to write to it, so that
// such a write costs nothing (AMD's Zen).
COLLECTIVES_API bool hands_lines_over();

// Bytes of a core's second-level cache, as the processor reports them, or a usual size if it does not.
COLLECTIVES_API std::size_t second_cache();

// Tells the core that it is in a spin loop. On arm64 `isb` waits about as long as x86's `pause`; `yield` is
// a no-op on most cores.
inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
}

}  // namespace collectives
