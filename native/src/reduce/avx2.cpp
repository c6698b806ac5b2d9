#include "reduce/isa.hpp"
#include "reduce/table.hpp"

namespace collectives {

const Kernels kernels_avx2 = {find_kernel, find_spread_kernel, find_encoder, find_decoder};

}  // namespace collectives
