// Element-wise reductions: one kernel for every element type and operation.
//
// Invariant: the bits of a result depend only on the operands and their order, never on the instruction set,
// the slices, the alignment or the kind of stores.
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
// - `scale` is used for Op::avg only. If it is the reciprocal of an integer n, the sum is divided by n, so
//   the average of equal values is that value. Integers need such a scale; their quotient is rounded towards
//   zero.
// - min and max propagate NaN and keep the first of equal operands. A computed NaN is the positive quiet NaN
//   (as numpy.nan), because the payload of an operand would depend on how the compiler orders an addition.
// - Integers wrap around. Logical operations, and all operations on bool, take any non-zero value as true and
//   give 0 or 1.
// - One source is copied (scaled, or made 0 or 1, as above).
//
// `dst` may be exactly one of the sources; otherwise it overlaps none. Addresses need no alignment.
// `n_sources` is at least 1; with `count` 0 nothing is touched. Never throws, never allocates.
using ReduceFn = void (*)(std::byte* dst, const std::byte* const* sources, std::size_t n_sources,
                          std::size_t count, double scale);

// As ReduceFn, but stores the result to several destinations at once, with streaming stores, so that reading
// and writing overlap. For sums and averages of floats and complex numbers, of at least two sources. All
// destinations have the same offset from a cache line (64 bytes). The first may be exactly one of the
// sources; the others overlap none.
using SpreadFn = void (*)(std::byte* const* dsts, std::size_t n_dsts, const std::byte* const* sources,
                          std::size_t n_sources, std::size_t count, double scale);

// Null if there is no such kernel for that type and operation.
COLLECTIVES_API SpreadFn spread_kernel(DType dtype, Op op);
COLLECTIVES_API SpreadFn spread_kernel(DType dtype, Op op, Isa isa);

// The kernel in the selected instruction set; null if the operation has no meaning for the element type.
// Looks up a table: callers keep the result.
COLLECTIVES_API ReduceFn reduce_kernel(DType dtype, Op op, Stores stores = Stores::cached);

// The kernel in a given instruction set, for which `has(isa)` must be true.
COLLECTIVES_API ReduceFn reduce_kernel(DType dtype, Op op, Stores stores, Isa isa);

}  // namespace collectives
