// Element-wise reductions: one kernel for every element type and operation.
//
// Invariant: the bits of a result depend on the operands and their order alone; never on the instruction
// set, the slicing, the alignment or the kind of stores.
#pragma once

#include <cstddef>

#include "base/copy.hpp"
#include "base/cpu.hpp"
#include "base/export.hpp"
#include "base/types.hpp"

namespace collectives {

// dst[i] = (s0[i] op s1[i] op ..., left to right) * scale, rounded to the element type.
//
// - float16 and bfloat16 are accumulated in float32 over all sources and rounded once, to nearest even.
// - `scale` counts for Op::avg only. Where it is the reciprocal of an integer n, the sum is divided by n, so
//   the average of equal values is that value.
// - min and max propagate NaN and keep the first of equal operands. A computed NaN is the positive quiet one
//   (as numpy.nan): the operands' payloads would depend on how the compiler orders an addition.
// - Integers wrap around. Logical operations, and all on bool, take any non-zero value as true and give 0
// or 1.
// - One source is copied (scaled, or made 0 or 1, as above).
//
// `dst` may be exactly one of the sources; otherwise it overlaps none. Addresses need no alignment.
// `n_sources` is at least 1; with `count` 0 nothing is touched. Never throws, never allocates.
using ReduceFn = void (*)(std::byte* dst, const std::byte* const* sources, std::size_t n_sources,
                          std::size_t count, double scale);

// The same to several places at once, around the caches, so that reading and writing go on side by side: sums
// and averages of floats and complex numbers, of two sources at least. All places lie equally far behind a
// cache line (64 bytes). The first may be exactly one of the sources; the others overlap none.
using SpreadFn = void (*)(std::byte* const* dsts, std::size_t n_dsts, const std::byte* const* sources,
                          std::size_t n_sources, std::size_t count, double scale);

// Null for what there is none for.
COLLECTIVES_API SpreadFn spread_kernel(DType dtype, Op op);
COLLECTIVES_API SpreadFn spread_kernel(DType dtype, Op op, Isa isa);

// The kernel in the selected instruction set; null if the operation has no meaning for the element type.
// Looks up a table: callers keep the result.
COLLECTIVES_API ReduceFn reduce_kernel(DType dtype, Op op, Stores stores = Stores::cached);

// The same in a given instruction set, which must be one that `has(isa)`.
COLLECTIVES_API ReduceFn reduce_kernel(DType dtype, Op op, Stores stores, Isa isa);

}  // namespace collectives
