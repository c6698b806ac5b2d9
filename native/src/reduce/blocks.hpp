// Kernels for float32 numbers in fewer bytes: to encode, to decode, and to add blocks of 256 numbers.
//
// The loops are plain, over arrays of a fixed length, and the compiler makes vectors of them. Invariant:
// every number is computed by the same operations wherever it is, and only the maximum of a block combines
// numbers. So all instruction sets give the same bits. See vector.hpp for why nothing here has external
// linkage.
#pragma once

#include "reduce/encoding.hpp"
#include "reduce/variant.hpp"

namespace collectives {
namespace {

constexpr std::size_t numbers = block_numbers;
constexpr std::uint32_t magnitude_bits = 0x7fffffffu;
constexpr std::uint32_t infinity_bits = 0x7f800000u;
constexpr float quiet_nan = __builtin_nanf("");
// In blocks whose numbers are all smaller, the scale or its reciprocal might not be a normal number.
constexpr float smallest_kept = 0x1p-118f;
// Adding this number to one between -2^22 and 2^22 rounds it to an integer, in the lowest bits of the result.
constexpr float rounder = 0x1.8p23f;

COLLECTIVES_INLINE std::uint32_t bits(float x) { return bits_of<std::uint32_t>(x); }
COLLECTIVES_INLINE float number(std::uint32_t x) { return bits_of<float>(x); }

// One byte as int8.
struct Int8Code {
    static constexpr float largest = 127;

    static COLLECTIVES_INLINE std::uint8_t pack(float x) {
        return static_cast<std::uint8_t>(bits(x + rounder));
    }
    static COLLECTIVES_INLINE float unpack(std::uint8_t code) {
        return static_cast<float>(static_cast<std::int8_t>(code));
    }
};

// One byte as a float8 with 4 bits of exponent and 3 of mantissa. The largest is 448, the smallest 2^-9.
struct Float8Code {
    static constexpr float largest = 448;
    static constexpr std::uint32_t rebias = (127u - 7u) << 23;
    static constexpr std::uint32_t smallest_normal = 121u << 23;  // 2^-6

    static COLLECTIVES_INLINE std::uint8_t pack(float x) {
        const std::uint32_t magnitude = bits(x) & magnitude_bits;
        // In the sum with 2^14, the last bit stands for 2^-9, the step between subnormal numbers.
        const std::uint32_t subnormal = bits(number(magnitude) + 0x1p14f) - bits(0x1p14f);
        const std::uint32_t normal = (magnitude - rebias + ((magnitude >> 20) & 1u) + 0x7ffffu) >> 20;
        const std::uint32_t code = magnitude < smallest_normal ? subnormal : normal;
        return static_cast<std::uint8_t>(code | (bits(x) >> 24 & 0x80u));
    }

    static COLLECTIVES_INLINE float unpack(std::uint8_t byte) {
        const std::uint32_t code = byte;
        const std::uint32_t magnitude = (code & 0x7fu) << 20;
        const float subnormal = number(magnitude + smallest_normal) - number(smallest_normal);
        const std::uint32_t found = magnitude < 8u << 20 ? bits(subnormal) : magnitude + rebias;
        return number(found | (code & 0x80u) << 24);
    }
};

template <class Code>
COLLECTIVES_INLINE void pack_block(std::byte* dst, const float (&x)[numbers]) {
    std::uint32_t most = 0;
    for (std::size_t i = 0; i < numbers; ++i) {
        const std::uint32_t magnitude = bits(x[i]) & magnitude_bits;
        most = magnitude > most ? magnitude : most;
    }
    std::uint8_t codes[numbers];
    float scale = 0;
    if (most >= infinity_bits || most < bits(smallest_kept)) {
        if (most >= infinity_bits) scale = quiet_nan;
        for (std::size_t i = 0; i < numbers; ++i) codes[i] = 0;
    } else {
        scale = number(most) / Code::largest;
        const float inverse = Code::largest / number(most);
        for (std::size_t i = 0; i < numbers; ++i) codes[i] = Code::pack(x[i] * inverse);
    }
    __builtin_memcpy(dst, &scale, sizeof(scale));
    __builtin_memcpy(dst + sizeof(scale), codes, sizeof(codes));
}

template <class Code>
COLLECTIVES_INLINE void unpack_block(float (&x)[numbers], const std::byte* source) {
    float scale;
    std::uint8_t codes[numbers];
    __builtin_memcpy(&scale, source, sizeof(scale));
    __builtin_memcpy(codes, source + sizeof(scale), sizeof(codes));
    for (std::size_t i = 0; i < numbers; ++i) x[i] = Code::unpack(codes[i]) * scale;
}

// A ReduceFn. Streaming stores are not worth while, since the arithmetic takes longer than the stores.
template <class Code, bool Scaled>
void reduce_blocks(std::byte* dst, const std::byte* const* sources, std::size_t n, std::size_t count,
                   double scale) {
    if (n == 1 && (!Scaled || scale == 1.0)) {
        copy_bytes(dst, sources[0], count * block_bytes);
        return;
    }
    Scaler<float> scaler;
    if constexpr (Scaled) scaler = Scaler<float>::from(scale);
    for (std::size_t at = 0; at < count * block_bytes; at += block_bytes) {
        float sum[numbers];
        unpack_block<Code>(sum, sources[0] + at);
        for (std::size_t s = 1; s < n; ++s) {
            float next[numbers];
            unpack_block<Code>(next, sources[s] + at);
            for (std::size_t i = 0; i < numbers; ++i) sum[i] += next[i];
        }
        if constexpr (Scaled) {
            if (scaler.divide) {
                for (std::size_t i = 0; i < numbers; ++i) sum[i] /= scaler.factor;
            } else {
                for (std::size_t i = 0; i < numbers; ++i) sum[i] *= scaler.factor;
            }
        }
        pack_block<Code>(dst + at, sum);
    }
}

template <class Code>
ReduceFn find_blocks(Op op) {
    if (op == Op::sum) return reduce_blocks<Code, false>;
    return op == Op::avg ? reduce_blocks<Code, true> : nullptr;
}

template <class Code>
void encode_blocks(std::byte* dst, const float* source, std::size_t n, float factor) {
    float x[numbers];
    for (; n >= numbers; n -= numbers, source += numbers, dst += block_bytes) {
        for (std::size_t i = 0; i < numbers; ++i) x[i] = source[i] * factor;
        pack_block<Code>(dst, x);
    }
    if (n == 0) return;
    for (std::size_t i = 0; i < numbers; ++i) x[i] = i < n ? source[i] * factor : 0;
    pack_block<Code>(dst, x);
}

template <class Code>
void decode_blocks(float* dst, const std::byte* source, std::size_t n, float factor) {
    float x[numbers];
    for (; n >= numbers; n -= numbers, dst += numbers, source += block_bytes) {
        unpack_block<Code>(x, source);
        for (std::size_t i = 0; i < numbers; ++i) dst[i] = x[i] * factor;
    }
    if (n == 0) return;
    unpack_block<Code>(x, source);
    for (std::size_t i = 0; i < n; ++i) dst[i] = x[i] * factor;
}

// One number as bfloat16, the upper half of a float32.
struct Bfloat16Code {
    static COLLECTIVES_INLINE std::uint16_t pack(float x) {
        const std::uint32_t u = bits(x);
        const std::uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
        return static_cast<std::uint16_t>((u & magnitude_bits) > infinity_bits ? 0x7fc0u : rounded);
    }
    static COLLECTIVES_INLINE float unpack(std::uint16_t code) { return number(std::uint32_t{code} << 16); }
};

// One number as float16; formats.hpp explains the steps.
struct Float16Code {
    static COLLECTIVES_INLINE std::uint16_t pack(float x) {
        const std::uint32_t magnitude = bits(x) & magnitude_bits;
        const std::uint32_t sign = bits(x) >> 16 & 0x8000u;
        const std::uint32_t subnormal = bits(number(magnitude) + 0.5f) - bits(0.5f);
        const std::uint32_t normal = (magnitude + ((magnitude >> 13 & 1u) + 0xfffu - (112u << 23))) >> 13;
        const std::uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
        const std::uint32_t infinite = magnitude > infinity_bits ? 0x7e00u : 0x7c00u | sign;
        return static_cast<std::uint16_t>(magnitude >= (143u << 23) ? infinite : finite | sign);
    }
    static COLLECTIVES_INLINE float unpack(std::uint16_t code) {
        const std::uint32_t magnitude = (code & 0x7fffu) << 13;
        const std::uint32_t sign = (code & 0x8000u) << 16;
        const std::uint32_t subnormal = bits(number(magnitude + (113u << 23)) - number(113u << 23));
        const std::uint32_t finite = magnitude < (0x0400u << 13) ? subnormal : magnitude + (112u << 23);
        const std::uint32_t found = magnitude >= (0x7c00u << 13) ? magnitude + (224u << 23) : finite;
        return number(found | sign);
    }
};

template <class Code>
void encode_halves(std::byte* dst, const float* source, std::size_t n, float factor) {
    for (std::size_t i = 0; i < n; ++i) {
        const std::uint16_t code = Code::pack(source[i] * factor);
        __builtin_memcpy(dst + 2 * i, &code, sizeof(code));
    }
}

template <class Code>
void decode_halves(float* dst, const std::byte* source, std::size_t n, float factor) {
    for (std::size_t i = 0; i < n; ++i) {
        std::uint16_t code;
        __builtin_memcpy(&code, source + 2 * i, sizeof(code));
        dst[i] = Code::unpack(code) * factor;
    }
}

EncodeFn find_encoder(DType dtype) {
    switch (dtype) {
        case DType::float16:
            return encode_halves<Float16Code>;
        case DType::bfloat16:
            return encode_halves<Bfloat16Code>;
        case DType::int8_blocks:
            return encode_blocks<Int8Code>;
        case DType::float8_blocks:
            return encode_blocks<Float8Code>;
        default:
            return nullptr;
    }
}

DecodeFn find_decoder(DType dtype) {
    switch (dtype) {
        case DType::float16:
            return decode_halves<Float16Code>;
        case DType::bfloat16:
            return decode_halves<Bfloat16Code>;
        case DType::int8_blocks:
            return decode_blocks<Int8Code>;
        case DType::float8_blocks:
            return decode_blocks<Float8Code>;
        default:
            return nullptr;
    }
}

}  // namespace
}  // namespace collectives
