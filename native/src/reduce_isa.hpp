// The kernels of each instruction set, before one is chosen.
//
// Invariant: those beyond the baseline exist on x86-64 only and run only where `has(isa)`.
#pragma once

#include "reduce.hpp"

namespace collectives {

ReduceFn reduce_kernel_baseline(DType dtype, Op op, Stores stores);
SpreadFn spread_kernel_baseline(DType dtype, Op op);
#if defined(__x86_64__)
ReduceFn reduce_kernel_avx2(DType dtype, Op op, Stores stores);
SpreadFn spread_kernel_avx2(DType dtype, Op op);
ReduceFn reduce_kernel_avx512(DType dtype, Op op, Stores stores);
SpreadFn spread_kernel_avx512(DType dtype, Op op);
#endif

}  // namespace collectives
