// Division of integers by the number of ranks, rounded towards zero: a multiplication, an addition, a shift.
//
// Invariant: every quotient is exact. Let x and n have N bits, and let 2^l be the largest power of two up to
// n. Then x / n = (m * x + b) / 2^(N + l), both rounded down, if
// - n is 2^l, and m = b = 2^N - 1
// - or m is 2^(N + l) / n, rounded up by at most 2^l / n, and b = 0
// - or m is 2^(N + l) / n, rounded down by at most 2^l / n, and b = m
// One of the last two holds for every other n. m and b have N bits, m * x + b has 2 N.
// (A. D. Robison, "N-bit unsigned division via N-bit multiply-add", ARITH 2005.)
//
// See vector.hpp for why nothing here has external linkage.
#pragma once

#include <type_traits>

#include "reduce/vector.hpp"

namespace collectives {
namespace {

template <class U>
struct Twice;
template <>
struct Twice<std::uint8_t> {
    using type = std::uint16_t;
};
template <>
struct Twice<std::uint16_t> {
    using type = std::uint32_t;
};
template <>
struct Twice<std::uint32_t> {
    using type = std::uint64_t;
};
template <>
struct Twice<std::uint64_t> {
    __extension__ using type = unsigned __int128;
};

// m, b and N + l above. By default, all quotients are 0: so are those by an n of more than N bits.
template <class U>
struct Reciprocal {
    using Wide = typename Twice<U>::type;
    static constexpr int bits = 8 * sizeof(U);

    U factor = 0;
    U addend = 0;
    int shift = bits;

    // `n` is at least 1.
    static Reciprocal of(std::uint64_t n) {
        constexpr U most = static_cast<U>(~U{0});
        if (n > most) return {};
        const int log = 63 - __builtin_clzll(n);
        const int shift = bits + log;
        if ((n & (n - 1)) == 0) return {most, most, shift};
        const auto power = static_cast<Wide>(Wide{1} << shift);
        const auto below = static_cast<U>(power / n);
        const auto missing = static_cast<std::uint64_t>(n - power % n);  // of n * (below + 1) over `power`
        if (missing <= std::uint64_t{1} << log) return {static_cast<U>(below + 1), 0, shift};
        return {below, below, shift};
    }

    template <int B>
    COLLECTIVES_INLINE Vec<U, B> quotients(Vec<U, B> x) const {
        if constexpr (sizeof(U) == 8) {
            for (int lane = 0; lane < B / 8; ++lane)
                x[lane] = static_cast<U>((Wide{factor} * x[lane] + addend) >> shift);
            return x;
        } else {
            // Each word of twice the width holds two numbers.
            using Words = Vec<Wide, B>;
            const auto low = static_cast<Wide>(static_cast<U>(~U{0}));
            const Words m = Words{} + Wide{factor};
            const Words b = Words{} + Wide{addend};
            const Words by = Words{} + static_cast<Wide>(shift);
            const auto words = as<Words>(x);
            const Words first = ((words & low) * m + b) >> by;
            const Words second = ((words >> bits) * m + b) >> by;
            return as<Vec<U, B>>(first | second << bits);
        }
    }
};

}  // namespace
}  // namespace collectives
