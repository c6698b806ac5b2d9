// The lookup functions of each instruction set, among which reduce.cpp chooses.
//
// Invariant: kernels beyond the baseline exist on x86-64 only, and run only if `has(isa)`.
#pragma once

#include "reduce/encoding.hpp"
#include "reduce/reduce.hpp"

namespace collectives {

struct Kernels {
    ReduceFn (*reduce)(DType dtype, Op op, Stores stores);
    SpreadFn (*spread)(DType dtype, Op op);
    EncodeFn (*encode)(DType dtype);
    DecodeFn (*decode)(DType dtype);
};

extern const Kernels kernels_baseline;
#if defined(__x86_64__)
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
#endif

}  // namespace collectives
