#include "reference.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace reference {

double Small::decode(std::uint16_t bits) const {
    const double sign = bits & 0x8000 ? -1.0 : 1.0;
    const unsigned magnitude = bits & 0x7fffu;
    const int exponent = static_cast<int>(magnitude >> mantissa_bits);
    const double mantissa = magnitude & ((1u << mantissa_bits) - 1);
    if (magnitude == infinity()) return sign * std::numeric_limits<double>::infinity();
    if (magnitude > infinity()) return std::numeric_limits<double>::quiet_NaN();
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * std::ldexp(mantissa + std::ldexp(1.0, mantissa_bits), exponent - bias - mantissa_bits);
}

// The spacing of the format's numbers around x divides it into whole and rest.
std::uint16_t Small::encode(double x) const {
    if (std::isnan(x)) return static_cast<std::uint16_t>(quiet_nan());
    const unsigned sign = std::signbit(x) ? 0x8000u : 0u;
    if (x == 0.0) return static_cast<std::uint16_t>(sign);
    const int exponent = std::isinf(x) ? bias + 1 : std::max(std::ilogb(x), 1 - bias);
    if (exponent > bias) return static_cast<std::uint16_t>(sign | infinity());
    const double steps = std::ldexp(std::fabs(x), mantissa_bits - exponent);
    double whole = std::floor(steps);
    const double rest = steps - whole;
    if (rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2.0) == 1.0)) whole += 1;
    // Subnormals have the exponent field 0; rounding up carries into the next exponent by itself.
    const unsigned field = static_cast<unsigned>(exponent + bias - 1) << mantissa_bits;
    return static_cast<std::uint16_t>(sign | (field + static_cast<unsigned>(whole)));
}

namespace {

template <class T>
T pure(T x) {
    return std::isnan(x) ? std::bit_cast<T>(std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>(
                               sizeof(T) == 4 ? 0x7fc00000u : 0x7ff8000000000000u))
                         : x;
}

template <class T>
T floating(Op op, T a, T b) {
    switch (op) {
        case Op::prod:
            return a * b;
        case Op::min:
            return std::isnan(a) || a <= b ? a : b;
        case Op::max:
            return std::isnan(a) || a >= b ? a : b;
        default:
            return a + b;
    }
}

// `divisor` 1 for none.
template <class T>
T averaged(Op op, T x, int divisor) {
    if (op != Op::avg) return x;
    if constexpr (std::is_integral_v<T>) {
        using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
        return static_cast<T>(static_cast<Wide>(x) / static_cast<Wide>(divisor));
    } else {
        return x / static_cast<T>(divisor);
    }
}

template <class T>
T integral(Op op, T a, T b) {
    using U = std::make_unsigned_t<T>;
    using W = std::uint64_t;
    switch (op) {
        case Op::sum:
        case Op::avg:
            return static_cast<T>(static_cast<U>(W(U(a)) + W(U(b))));
        case Op::prod:
            return static_cast<T>(static_cast<U>(W(U(a)) * W(U(b))));
        case Op::min:
            return b < a ? b : a;
        case Op::max:
            return b > a ? b : a;
        case Op::band:
            return static_cast<T>(a & b);
        case Op::bor:
            return static_cast<T>(a | b);
        case Op::bxor:
            return static_cast<T>(a ^ b);
        case Op::land:
            return a && b;
        case Op::lor:
            return a || b;
        default:
            return !a != !b;
    }
}

std::uint8_t boolean(Op op, bool a, bool b) {
    switch (op) {
        case Op::sum:
        case Op::max:
        case Op::bor:
        case Op::lor:
            return a || b;
        case Op::bxor:
        case Op::lxor:
            return a != b;
        default:
            return a && b;
    }
}

bool is_logical(Op op) { return op == Op::land || op == Op::lor || op == Op::lxor; }

template <class T>
T at(const Bytes& bytes, std::size_t i) {
    T x;
    std::memcpy(&x, bytes.data() + i * sizeof(T), sizeof(T));
    return x;
}

// Calls f(i) -> T for every element.
template <class T, class F>
Bytes each(std::size_t count, F f) {
    Bytes out(count * sizeof(T));
    for (std::size_t i = 0; i < count; ++i) set<T>(out, i, f(i));
    return out;
}

template <class T>
Bytes reduce_floating(Op op, const std::vector<Bytes>& sources, std::size_t count, int divisor) {
    return each<T>(count, [&](std::size_t i) {
        T acc = at<T>(sources[0], i);
        for (std::size_t s = 1; s < sources.size(); ++s) acc = floating(op, acc, at<T>(sources[s], i));
        return pure(averaged(op, acc, divisor));
    });
}

Bytes reduce_small(const Small& format, Op op, const std::vector<Bytes>& sources, std::size_t count,
                   int divisor) {
    return each<std::uint16_t>(count, [&](std::size_t i) {
        auto acc = static_cast<float>(format.decode(at<std::uint16_t>(sources[0], i)));
        for (std::size_t s = 1; s < sources.size(); ++s)
            acc = floating(op, acc, static_cast<float>(format.decode(at<std::uint16_t>(sources[s], i))));
        return format.encode(averaged(op, acc, divisor));
    });
}

template <class T>
Bytes reduce_complex(Op op, const std::vector<Bytes>& sources, std::size_t count, int divisor) {
    struct Number {
        T re, im;
    };
    return each<Number>(count, [&](std::size_t i) {
        auto a = at<Number>(sources[0], i);
        for (std::size_t s = 1; s < sources.size(); ++s) {
            const auto b = at<Number>(sources[s], i);
            a = op == Op::prod ? Number{a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}
                               : Number{a.re + b.re, a.im + b.im};
        }
        return Number{pure(averaged(op, a.re, divisor)), pure(averaged(op, a.im, divisor))};
    });
}

template <class T>
Bytes reduce_integral(Op op, const std::vector<Bytes>& sources, std::size_t count, int divisor) {
    return each<T>(count, [&](std::size_t i) {
        T acc = at<T>(sources[0], i);
        if (is_logical(op)) acc = acc != 0;
        for (std::size_t s = 1; s < sources.size(); ++s) acc = integral(op, acc, at<T>(sources[s], i));
        return averaged(op, acc, divisor);
    });
}

Bytes reduce_boolean(Op op, const std::vector<Bytes>& sources, std::size_t count) {
    return each<std::uint8_t>(count, [&](std::size_t i) {
        std::uint8_t acc = at<std::uint8_t>(sources[0], i) != 0;
        for (std::size_t s = 1; s < sources.size(); ++s)
            acc = boolean(op, acc, at<std::uint8_t>(sources[s], i) != 0);
        return acc;
    });
}

// One floating-point element: ordinary numbers of nearby magnitude (which cancel and round), any bits at all
// (subnormals, infinities, NaNs with payloads), zeros of both signs and small integers.
template <class T>
T interesting(std::mt19937_64& random) {
    using U = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    switch (random() % 8) {
        case 0:
            return std::bit_cast<T>(static_cast<U>(random()));
        case 1:
            return random() % 2 ? T(0) : -T(0);
        case 2:
            return static_cast<T>(static_cast<int>(random() % 9) - 4);
        default:
            return std::ldexp(static_cast<T>(static_cast<std::int64_t>(random())), -62 - int(random() % 4));
    }
}

}  // namespace

Bytes reduce(DType dtype, Op op, const std::vector<Bytes>& sources, std::size_t count, int divisor) {
    // A copy, bit by bit.
    const bool makes_truth = dtype == DType::boolean || is_logical(op);
    if (sources.size() == 1 && !makes_truth && (op != Op::avg || divisor == 1))
        return Bytes(sources[0].begin(),
                     sources[0].begin() + static_cast<std::ptrdiff_t>(count * size_of(dtype)));
    switch (dtype) {
        case DType::float16:
            return reduce_small(half, op, sources, count, divisor);
        case DType::bfloat16:
            return reduce_small(brain, op, sources, count, divisor);
        case DType::float32:
            return reduce_floating<float>(op, sources, count, divisor);
        case DType::float64:
            return reduce_floating<double>(op, sources, count, divisor);
        case DType::int8:
            return reduce_integral<std::int8_t>(op, sources, count, divisor);
        case DType::int16:
            return reduce_integral<std::int16_t>(op, sources, count, divisor);
        case DType::int32:
            return reduce_integral<std::int32_t>(op, sources, count, divisor);
        case DType::int64:
            return reduce_integral<std::int64_t>(op, sources, count, divisor);
        case DType::uint8:
            return reduce_integral<std::uint8_t>(op, sources, count, divisor);
        case DType::uint16:
            return reduce_integral<std::uint16_t>(op, sources, count, divisor);
        case DType::uint32:
            return reduce_integral<std::uint32_t>(op, sources, count, divisor);
        case DType::uint64:
            return reduce_integral<std::uint64_t>(op, sources, count, divisor);
        case DType::boolean:
            return reduce_boolean(op, sources, count);
        case DType::complex64:
            return reduce_complex<float>(op, sources, count, divisor);
        case DType::complex128:
            return reduce_complex<double>(op, sources, count, divisor);
        case DType::int8_blocks:
        case DType::float8_blocks:
            break;  // see reduce/test_blocks.cpp
    }
    return {};
}

Bytes data(DType dtype, std::size_t count, std::mt19937_64& random) {
    switch (dtype) {
        case DType::float16:
        case DType::bfloat16: {
            const Small& format = dtype == DType::float16 ? half : brain;
            return each<std::uint16_t>(count, [&](std::size_t) {
                return random() % 4 == 0 ? static_cast<std::uint16_t>(random())
                                         : format.encode(interesting<float>(random));
            });
        }
        case DType::float32:
        case DType::complex64:
            return each<float>(count * size_of(dtype) / 4,
                               [&](std::size_t) { return interesting<float>(random); });
        case DType::float64:
        case DType::complex128:
            return each<double>(count * size_of(dtype) / 8,
                                [&](std::size_t) { return interesting<double>(random); });
        default:
            break;
    }
    // Half of the integers are zero in their low byte, so that logical operations see both truths.
    return each<std::uint8_t>(count * size_of(dtype), [&](std::size_t) {
        return random() % 2 ? std::uint8_t(0) : static_cast<std::uint8_t>(random());
    });
}

}  // namespace reference
