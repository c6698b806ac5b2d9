#include "reduce/reduce.hpp"

#include "reduce/isa.hpp"

namespace collectives {

namespace {

const Kernels& kernels_of(Isa isa) {
    switch (isa) {
#if defined(__x86_64__)
        case Isa::avx512:
            return kernels_avx512;
        case Isa::avx2:
            return kernels_avx2;
#endif
        default:
            return kernels_baseline;
    }
}

}  // namespace

ReduceFn reduce_kernel(DType dtype, Op op, Stores stores) {
    return reduce_kernel(dtype, op, stores, selected_isa());
}

ReduceFn reduce_kernel(DType dtype, Op op, Stores stores, Isa isa) {
    return kernels_of(isa).reduce(dtype, op, stores);
}

SpreadFn spread_kernel(DType dtype, Op op) { return spread_kernel(dtype, op, selected_isa()); }

SpreadFn spread_kernel(DType dtype, Op op, Isa isa) { return kernels_of(isa).spread(dtype, op); }

EncodeFn encoder(DType dtype) { return encoder(dtype, selected_isa()); }

EncodeFn encoder(DType dtype, Isa isa) { return kernels_of(isa).encode(dtype); }

DecodeFn decoder(DType dtype) { return decoder(dtype, selected_isa()); }

DecodeFn decoder(DType dtype, Isa isa) { return kernels_of(isa).decode(dtype); }

}  // namespace collectives
