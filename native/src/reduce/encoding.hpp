// Float32 arrays in fewer bytes: as float16, bfloat16, or as blocks of 256 numbers with a common scale.
//
// Invariant: the bits of a result depend only on the numbers, never on the instruction set or the alignment.
#pragma once

#include <cstddef>

#include "base/cpu.hpp"
#include "base/export.hpp"
#include "base/types.hpp"

namespace collectives {

// Writes source[i] * factor, for i < n, as elements of the encoded type: n elements of float16 or bfloat16,
// or ceil(n / 256) blocks. Zeros fill the last block. Rounds to nearest even.
//
// A block is its scale, a float32, and 256 bytes. With m the largest absolute value of the block:
//
// - int8_blocks: the scale is m / 127, and byte i is the int8 nearest to x[i] / scale
// - float8_blocks: the scale is m / 448, and byte i is the float8 (4 bits of exponent, 3 of mantissa, no
//   infinity: e4m3fn) nearest to x[i] / scale
// - If m is less than 2^-118, all bytes and the scale are 0
// - If a number of the block is infinite or NaN, the scale is NaN and all bytes are 0
//
// Addresses need no alignment; the arrays do not overlap. Never throws, never allocates.
using EncodeFn = void (*)(std::byte* dst, const float* source, std::size_t n, float factor);

// The reverse: dst[i] = x * factor, with x the number i of `source`. In a block, x is the product of scale
// and byte, rounded to float32: so a block whose scale is NaN is NaN throughout.
using DecodeFn = void (*)(float* dst, const std::byte* source, std::size_t n, float factor);

// Null if `dtype` is not an encoded type. The selected instruction set, or a given one for which `has(isa)`.
COLLECTIVES_API EncodeFn encoder(DType dtype);
COLLECTIVES_API EncodeFn encoder(DType dtype, Isa isa);
COLLECTIVES_API DecodeFn decoder(DType dtype);
COLLECTIVES_API DecodeFn decoder(DType dtype, Isa isa);

// The number of elements of `dtype` for n float32 numbers.
constexpr std::size_t encoded_elements(DType dtype, std::size_t n) {
    return is_blocks(dtype) ? (n + block_numbers - 1) / block_numbers : n;
}

}  // namespace collectives
