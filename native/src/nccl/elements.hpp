// Which of NCCL's element types and operators stand for those of this library.
//
// Invariant: what NCCL would refuse, or compute in another way than this library, has a reason here and no
// type. Complex sums are sums of pairs. NCCL's average of integers is this library's: their
// sum wraps around, and its quotient is rounded towards zero.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/types.hpp"
#include "nccl/api.hpp"

namespace collectives::nccl {

// What NCCL is told of elements of a dtype under a reduction.
struct Elements {
    DataType type = type_uint8;
    std::uint64_t each = 1;  // of NCCL's elements, in one element
    Reduction op = op_sum;
};

// Why NCCL does not reduce elements of the dtype with that name; empty if it does, and `elements` is set.
// `version`: of NCCL; `capability`: of the oldest device.
std::string why_not_reduced(std::string_view dtype, Op op, int version, int capability, Elements& elements);

}  // namespace collectives::nccl
