// What the reductions should give: one element at a time, with conversions by way of double arithmetic.
//
// Compiled with optimisation in every build, as data.hpp.
//
// Invariant: shares no code with the kernels beyond the names of types and operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/types.hpp"

namespace reference {

using collectives::DType;
using collectives::Op;
using Bytes = std::vector<std::byte>;

// A binary floating-point format of 16 bits.
struct Small {
    int mantissa_bits;
    int bias;

    int exponent_bits() const { return 15 - mantissa_bits; }
    unsigned infinity() const { return ((1u << exponent_bits()) - 1) << mantissa_bits; }
    unsigned quiet_nan() const { return infinity() | 1u << (mantissa_bits - 1); }

    double decode(std::uint16_t bits) const;
    std::uint16_t encode(double x) const;  // to nearest, ties to even
};

inline constexpr Small half{10, 15};
inline constexpr Small brain{7, 127};

template <class T>
void set(Bytes& bytes, std::size_t i, T x) {
    std::memcpy(bytes.data() + i * sizeof(T), &x, sizeof(T));
}

// Exactly what a kernel should write; `divisor` counts for avg.
Bytes reduce(DType dtype, Op op, const std::vector<Bytes>& sources, std::size_t count, int divisor);

// Random elements, among them such as NaN and zeros of both signs.
Bytes data(DType dtype, std::size_t count, std::mt19937_64& random);

}  // namespace reference
