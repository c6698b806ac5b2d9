#include "base/cpu.hpp"

#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace collectives {
namespace {

struct Features {
    bool avx2 = false;
    bool avx512 = false;
    bool fast_string_copy = false;
    bool is_zen = false;
};

#if defined(__x86_64__)

constexpr bool all(std::uint64_t word, std::uint64_t bits) { return (word & bits) == bits; }
constexpr std::uint64_t bit(int n) { return std::uint64_t{1} << n; }

/// The register states that the operating system saves on a context switch.
std::uint64_t saved_states() {
    std::uint32_t low = 0, high = 0;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return std::uint64_t{high} << 32 | low;
}

Features detect() {
    Features features;
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!__get_cpuid(0, &eax, &ebx, &ecx, &edx)) return features;
    features.is_zen = ebx == signature_AMD_ebx && ecx == signature_AMD_ecx && edx == signature_AMD_edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return features;
    const bool osxsave = all(ecx, bit(27));
    const bool avx_f16c = all(ecx, bit(28) | bit(29));
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return features;
    features.fast_string_copy = all(ebx, bit(9)) || all(edx, bit(4));
    const std::uint64_t states = osxsave ? saved_states() : 0;
    const bool ymm_saved = all(states, bit(1) | bit(2));
    const bool zmm_saved = ymm_saved && all(states, bit(5) | bit(6) | bit(7));
    features.avx2 = avx_f16c && ymm_saved && all(ebx, bit(5));
    // F, DQ, BW, VL
    features.avx512 = features.avx2 && zmm_saved && all(ebx, bit(16) | bit(17) | bit(30) | bit(31));
    return features;
}

#else

Features detect() { return {}; }

#endif

const Features& features() {
    static const Features detected = detect();
    return detected;
}

constexpr Isa every_isa[] = {Isa::baseline, Isa::avx2, Isa::avx512};

Isa choose() {
    if (const char* wanted = std::getenv("COLLECTIVES_ISA"); wanted != nullptr && *wanted != '\0') {
        for (const Isa isa : every_isa) {
            const std::string_view spelled = isa == Isa::baseline ? "baseline" : name(isa);
            if (spelled != wanted) continue;
            if (has(isa)) return isa;
            throw std::invalid_argument(std::string("COLLECTIVES_ISA=") + wanted +
                                        ": this processor or operating system does not support it");
        }
        throw std::invalid_argument(std::string("COLLECTIVES_ISA=") + wanted +
                                    ": expected baseline, avx2 or avx512");
    }
    Isa best = Isa::baseline;
    for (const Isa isa : every_isa)
        if (has(isa)) best = isa;
    return best;
}

}  // namespace

std::string_view name(Isa isa) {
    switch (isa) {
        case Isa::avx2:
            return "avx2";
        case Isa::avx512:
            return "avx512";
        case Isa::baseline:
            break;
    }
#if defined(__x86_64__)
    return "sse2";
#elif defined(__aarch64__)
    return "neon";
#else
    return "portable";
#endif
}

bool has(Isa isa) {
    switch (isa) {
        case Isa::avx2:
            return features().avx2;
        case Isa::avx512:
            return features().avx512;
        case Isa::baseline:
            break;
    }
    return true;
}

Isa selected_isa() {
    static const Isa selected = choose();
    return selected;
}

std::vector<std::string> cpu_features() {
    std::vector<std::string> names;
    for (const Isa isa : every_isa)
        if (has(isa) && isa <= selected_isa()) names.emplace_back(name(isa));
    return names;
}

bool has_fast_string_copy() { return features().fast_string_copy; }

bool string_copy_seems_to_overlap() { return features().is_zen; }

bool hands_lines_over() { return features().is_zen; }

std::size_t second_cache() {
    constexpr std::size_t usual = 1 << 20;
    static const long told = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
    return told > 0 ? static_cast<std::size_t>(told) : usual;
}

}  // namespace collectives
