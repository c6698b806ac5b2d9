// The kernel for each element type and operation.
//
// Invariant: this file only looks up, and computes nothing. Each file of an instruction set includes it, like
// the kernels (variant.hpp), with its instruction set switched on.
#pragma once

#include "reduce/blocks.hpp"
#include "reduce/variant.hpp"

namespace collectives {
namespace {

// Sums and averages have variants with streaming stores. Sums, averages, and minima and maxima of floats have
// a loop for two sources; other operations have one loop for any number of sources.
template <class F, class O, Stores S, std::size_t ElementBytes = F::unit>
constexpr ReduceFn hot = entry<Kernel<F, O, false>, S, true, ElementBytes, true>;

template <class F, Stores S, std::size_t ElementBytes = F::unit>
constexpr ReduceFn average = entry<Kernel<F, Sum, true>, S, true, ElementBytes, true>;

// A sum that is not the last is not divided, which would take longer than to add.
template <class T, class U, Stores S>
void average_integers(std::byte* dst, const std::byte* const* sources, std::size_t n, std::size_t count,
                      double scale) {
    if (scale == 1.0) return hot<Plain<U>, Sum, S>(dst, sources, n, count, scale);
    entry<Kernel<Whole<T>, Sum, true>, S, false, sizeof(T), true>(dst, sources, n, count, scale);
}

template <class F, class O, std::size_t ElementBytes = F::unit, std::size_t Unit = F::unit>
constexpr ReduceFn plain = entry<Kernel<F, O, false, Unit>, Stores::cached, false, ElementBytes, true>;

template <class F, class O>
constexpr ReduceFn logical = entry<Kernel<F, O, false>, Stores::cached, false, F::unit, false>;

template <class F, Stores S>
ReduceFn find_floating(Op op) {
    switch (op) {
        case Op::sum:
            return hot<F, Sum, S>;
        case Op::avg:
            return average<F, S>;
        case Op::min:
            return hot<F, Min, Stores::cached>;
        case Op::max:
            return hot<F, Max, Stores::cached>;
        case Op::prod:
            return plain<F, Prod>;
        default:
            return nullptr;
    }
}

template <class T, Stores S>
ReduceFn find_complex(Op op) {
    switch (op) {
        case Op::sum:
            return hot<Plain<T>, Sum, S, 2 * sizeof(T)>;
        case Op::avg:
            return average<Plain<T>, S, 2 * sizeof(T)>;
        case Op::prod:
            return plain<Plain<T>, ComplexProd, 2 * sizeof(T), 2 * sizeof(T)>;
        default:
            return nullptr;
    }
}

// `U`: the unsigned type of the same size. Sums, products and bitwise operations do not depend on the sign,
// and unsigned arithmetic wraps around. The quotient of an average has the sign of the sum.
template <class T, class U, Stores S>
ReduceFn find_integer(Op op) {
    using Bits = Plain<std::uint64_t>;
    switch (op) {
        case Op::sum:
            return hot<Plain<U>, Sum, S>;
        case Op::avg:
            return average_integers<T, U, S>;
        case Op::prod:
            return plain<Plain<U>, Prod>;
        case Op::min:
            return plain<Plain<T>, Min>;
        case Op::max:
            return plain<Plain<T>, Max>;
        case Op::band:
            return plain<Bits, And, sizeof(T), 1>;
        case Op::bor:
            return plain<Bits, Or, sizeof(T), 1>;
        case Op::bxor:
            return plain<Bits, Xor, sizeof(T), 1>;
        case Op::land:
            return logical<Truth<U>, And>;
        case Op::lor:
            return logical<Truth<U>, Or>;
        case Op::lxor:
            return logical<Truth<U>, Xor>;
    }
    return nullptr;
}

ReduceFn find_boolean(Op op) {
    switch (op) {
        case Op::sum:
        case Op::max:
        case Op::bor:
        case Op::lor:
            return logical<Truth<std::uint8_t>, Or>;
        case Op::prod:
        case Op::min:
        case Op::band:
        case Op::land:
            return logical<Truth<std::uint8_t>, And>;
        case Op::bxor:
        case Op::lxor:
            return logical<Truth<std::uint8_t>, Xor>;
        case Op::avg:
            break;
    }
    return nullptr;
}

template <Stores S>
ReduceFn find(DType dtype, Op op) {
    switch (dtype) {
        case DType::float16:
            return find_floating<Float16, S>(op);
        case DType::bfloat16:
            return find_floating<Bfloat16, S>(op);
        case DType::float32:
            return find_floating<Plain<float>, S>(op);
        case DType::float64:
            return find_floating<Plain<double>, S>(op);
        case DType::int8:
            return find_integer<std::int8_t, std::uint8_t, S>(op);
        case DType::int16:
            return find_integer<std::int16_t, std::uint16_t, S>(op);
        case DType::int32:
            return find_integer<std::int32_t, std::uint32_t, S>(op);
        case DType::int64:
            return find_integer<std::int64_t, std::uint64_t, S>(op);
        case DType::uint8:
            return find_integer<std::uint8_t, std::uint8_t, S>(op);
        case DType::uint16:
            return find_integer<std::uint16_t, std::uint16_t, S>(op);
        case DType::uint32:
            return find_integer<std::uint32_t, std::uint32_t, S>(op);
        case DType::uint64:
            return find_integer<std::uint64_t, std::uint64_t, S>(op);
        case DType::boolean:
            return find_boolean(op);
        case DType::complex64:
            return find_complex<float, S>(op);
        case DType::complex128:
            return find_complex<double, S>(op);
        case DType::int8_blocks:
            return find_blocks<Int8Code>(op);
        case DType::float8_blocks:
            return find_blocks<Float8Code>(op);
    }
    return nullptr;
}

template <class F, std::size_t ElementBytes = F::unit>
SpreadFn find_spread(Op op) {
    switch (op) {
        case Op::sum:
            return entry_several<Kernel<F, Sum, false>, ElementBytes>;
        case Op::avg:
            return entry_several<Kernel<F, Sum, true>, ElementBytes>;
        default:
            return nullptr;
    }
}

SpreadFn find_spread_kernel(DType dtype, Op op) {
    switch (dtype) {
        case DType::float16:
            return find_spread<Float16>(op);
        case DType::bfloat16:
            return find_spread<Bfloat16>(op);
        case DType::float32:
            return find_spread<Plain<float>>(op);
        case DType::float64:
            return find_spread<Plain<double>>(op);
        case DType::complex64:
            return find_spread<Plain<float>, 2 * sizeof(float)>(op);
        case DType::complex128:
            return find_spread<Plain<double>, 2 * sizeof(double)>(op);
        default:
            return nullptr;
    }
}

ReduceFn find_kernel(DType dtype, Op op, Stores stores) {
    return stores == Stores::streaming ? find<Stores::streaming>(dtype, op) : find<Stores::cached>(dtype, op);
}

}  // namespace
}  // namespace collectives
