// Element types and reductions: their codes, names and sizes, and which type supports which reduction.
//
// Invariant: codes are sent to other ranks and index the kernel tables, so they never change their meaning.
//
// An element of int8_blocks or float8_blocks is a block of 256 numbers, as reduce/blocks.hpp describes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace collectives {

enum class DType : std::uint8_t {
    float16,
    bfloat16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
    boolean,
    complex64,
    complex128,
    int8_blocks,
    float8_blocks,
};

enum class Op : std::uint8_t { sum, prod, min, max, avg, band, bor, bxor, land, lor, lxor };

inline constexpr std::array<std::string_view, 17> dtype_names{
    "float16", "bfloat16",  "float32",    "float64",     "int8",         "int16",
    "int32",   "int64",     "uint8",      "uint16",      "uint32",       "uint64",
    "bool",    "complex64", "complex128", "int8_blocks", "float8_blocks"};

// Numbers in a block, and its bytes: a scale in float32, then one byte for each number.
inline constexpr std::size_t block_numbers = 256;
inline constexpr std::size_t block_bytes = 4 + block_numbers;

inline constexpr std::array<std::uint16_t, 17> dtype_sizes{2, 2, 4, 8, 1, 2,  4,           8,          1,
                                                           2, 4, 8, 1, 8, 16, block_bytes, block_bytes};

// Whether each stored partial sum loses precision, so that algorithms with fewer partial sums are preferred.
constexpr bool rounds_each_time(DType dtype) {
    return dtype == DType::float16 || dtype == DType::bfloat16 || dtype >= DType::int8_blocks;
}

inline constexpr std::array<std::string_view, 11> op_names{"sum", "prod", "min",  "max", "avg", "band",
                                                           "bor", "bxor", "land", "lor", "lxor"};

// Codes come from other machines: check with these before casting to the enums.
constexpr bool is_dtype(unsigned code) { return code < dtype_names.size(); }
constexpr bool is_op(unsigned code) { return code < op_names.size(); }

constexpr std::string_view name(DType dtype) { return dtype_names[static_cast<std::size_t>(dtype)]; }
constexpr std::string_view name(Op op) { return op_names[static_cast<std::size_t>(op)]; }

// Bytes of one element.
constexpr std::size_t size_of(DType dtype) { return dtype_sizes[static_cast<std::size_t>(dtype)]; }

constexpr bool is_complex(DType dtype) { return dtype == DType::complex64 || dtype == DType::complex128; }
constexpr bool is_floating(DType dtype) { return dtype <= DType::float64; }
// Whether an element is a block of numbers. Elements of other types have a size that is a power of two, at
// most `largest_scalar`.
constexpr bool is_blocks(DType dtype) { return dtype >= DType::int8_blocks; }
inline constexpr std::size_t largest_scalar = 16;

// Whether the reduction has a meaning for the element type. For bool, sum and max are "or", prod and min
// "and", as in NumPy.
constexpr bool supports(DType dtype, Op op) {
    if (is_blocks(dtype)) return op == Op::sum || op == Op::avg;
    switch (op) {
        case Op::sum:
        case Op::prod:
            return true;
        case Op::min:
        case Op::max:
            return !is_complex(dtype);
        case Op::avg:
            return dtype != DType::boolean;
        case Op::band:
        case Op::bor:
        case Op::bxor:
        case Op::land:
        case Op::lor:
        case Op::lxor:
            return !is_floating(dtype) && !is_complex(dtype);
    }
    return false;
}

}  // namespace collectives
