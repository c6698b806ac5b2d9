#include "reduce.hpp"

#include "reduce_isa.hpp"

namespace collectives {

ReduceFn reduce_kernel(DType dtype, Op op, Stores stores) {
    return reduce_kernel(dtype, op, stores, selected_isa());
}

ReduceFn reduce_kernel(DType dtype, Op op, Stores stores, Isa isa) {
    switch (isa) {
#if defined(__x86_64__)
        case Isa::avx512:
            return reduce_kernel_avx512(dtype, op, stores);
        case Isa::avx2:
            return reduce_kernel_avx2(dtype, op, stores);
#endif
        default:
            return reduce_kernel_baseline(dtype, op, stores);
    }
}

SpreadFn spread_kernel(DType dtype, Op op) { return spread_kernel(dtype, op, selected_isa()); }

SpreadFn spread_kernel(DType dtype, Op op, Isa isa) {
    switch (isa) {
#if defined(__x86_64__)
        case Isa::avx512:
            return spread_kernel_avx512(dtype, op);
        case Isa::avx2:
            return spread_kernel_avx2(dtype, op);
#endif
        default:
            return spread_kernel_baseline(dtype, op);
    }
}

}  // namespace collectives
