// The input of ranks, and how results are compared. Compiled with optimisation in every build, because the
// sanitizers take minutes over such loops otherwise.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace collectives::testing {

// How often a test repeats what it does: less often under the sanitizers, of which the thread sanitizer takes
// 10 to 20 times as long.
inline constexpr int fewer(int rounds) {
#if defined(__SANITIZE_THREAD__)
    return (rounds + 2) / 3;
#elif defined(__SANITIZE_ADDRESS__)
    return (rounds + 1) / 2;
#else
    return rounds;
#endif
}

// Whether two arrays have the same bits. The sanitizers watch memcmp, all bytes at once.
template <typename T>
bool have_same_bits(std::span<const T> a, std::span<const T> b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}
inline bool same(std::span<const float> a, std::span<const float> b) { return have_same_bits(a, b); }
inline bool same(std::span<const std::byte> a, std::span<const std::byte> b) { return have_same_bits(a, b); }

struct Floats : std::vector<float> {
    using std::vector<float>::vector;

    friend bool operator==(const Floats& a, const std::vector<float>& b) { return same(a, b); }
    friend bool operator==(const Floats& a, const Floats& b) { return same(a, b); }
};

// The input of a rank: n values whose sums are exact.
Floats values(int rank, std::size_t n);

std::vector<std::byte> random_bytes(std::size_t n, unsigned seed);

// The sum of the inputs of `size` ranks from `first` on, multiplied by `times`.
Floats total(int size, std::size_t n, float times = 1.0F, int first = 0);

}  // namespace collectives::testing
