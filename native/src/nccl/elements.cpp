#include "nccl/elements.hpp"

#include <array>

#include "nccl/library.hpp"

namespace collectives::nccl {

namespace {

enum class Sort { number, narrow, complex, boolean, none };

struct Known {
    std::string_view name;
    DataType type;
    std::uint64_t each;
    Sort sort;
};

constexpr std::array known{
    Known{"float16", type_float16, 1, Sort::number},
    Known{"bfloat16", type_bfloat16, 1, Sort::number},
    Known{"float32", type_float32, 1, Sort::number},
    Known{"float64", type_float64, 1, Sort::number},
    Known{"float8_e4m3fn", type_float8_e4m3, 1, Sort::narrow},
    Known{"float8_e5m2", type_float8_e5m2, 1, Sort::narrow},
    Known{"int8", type_int8, 1, Sort::number},
    Known{"int32", type_int32, 1, Sort::number},
    Known{"int64", type_int64, 1, Sort::number},
    Known{"uint8", type_uint8, 1, Sort::number},
    Known{"uint32", type_uint32, 1, Sort::number},
    Known{"uint64", type_uint64, 1, Sort::number},
    Known{"bool", type_uint8, 1, Sort::boolean},
    Known{"complex64", type_float32, 2, Sort::complex},
    Known{"complex128", type_float64, 2, Sort::complex},
};

Known find(std::string_view dtype) {
    for (const Known& one : known) {
        if (one.name == dtype) return one;
    }
    return {dtype, type_uint8, 1, Sort::none};
}

// A bool is a byte that is 0 or 1: "or" is its largest value, "and" its smallest.
std::string of_bools(Op op, Elements& elements) {
    switch (op) {
        case Op::sum:
        case Op::max:
        case Op::bor:
        case Op::lor:
            elements.op = op_max;
            return "";
        case Op::prod:
        case Op::min:
        case Op::band:
        case Op::land:
            elements.op = op_min;
            return "";
        default:
            return "NCCL has no exclusive or";
    }
}

}  // namespace

std::string why_not_reduced(std::string_view dtype, Op op, int version, int capability, Elements& elements) {
    const Known one = find(dtype);
    if (one.sort == Sort::none) return "NCCL has no " + std::string(dtype);
    elements = {one.type, one.each, op_sum};
    if (one.sort == Sort::boolean) return of_bools(op, elements);
    if (one.sort == Sort::narrow && version < version_of_float8) {
        return "NCCL " + version_text(version) + " has no " + std::string(dtype) + ", which it has from " +
               version_text(version_of_float8) + " on";
    }
    if (one.sort == Sort::narrow && capability < capability_of_float8) {
        return "NCCL reduces " + std::string(dtype) + " on devices of compute capability 9.0 and later";
    }
    const bool is_complex = one.sort == Sort::complex;
    switch (op) {
        case Op::sum:
            return "";
        case Op::avg:
            elements.op = op_avg;
            return "";
        case Op::prod:
            elements.op = op_prod;
            return is_complex ? "NCCL has no complex numbers, and a product is not one of pairs" : "";
        case Op::min:
            elements.op = op_min;
            return is_complex ? "complex numbers have no order" : "";
        case Op::max:
            elements.op = op_max;
            return is_complex ? "complex numbers have no order" : "";
        default:
            return "NCCL has only sum, prod, min, max and avg";
    }
}

}  // namespace collectives::nccl
