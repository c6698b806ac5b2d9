#include "reduce_isa.hpp"
#include "reduce_table.hpp"

namespace collectives {

ReduceFn reduce_kernel_baseline(DType dtype, Op op, Stores stores) { return find_kernel(dtype, op, stores); }

SpreadFn spread_kernel_baseline(DType dtype, Op op) { return find_spread_kernel(dtype, op); }

}  // namespace collectives
