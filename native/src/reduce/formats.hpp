// Conversions for each element type: `unpack` from memory to the type of the arithmetic, `pack` back.
//
// Invariant: only `pack` rounds a value to its element type. Values go through `quiet` before, so that every
// NaN is the positive quiet one. See vector.hpp for why nothing here has external linkage.
#pragma once

#include <type_traits>

#include "reduce/vector.hpp"

namespace collectives {
namespace {

// Two vectors of the arithmetic's type, for one vector of elements that are half as wide.
template <class V>
struct Pair {
    V first, second;
};

template <class V>
COLLECTIVES_INLINE V quiet(V v) {
    using T = std::remove_cvref_t<decltype(v[0])>;
    return v != v ? broadcast<sizeof(V)>(static_cast<T>(__builtin_nan(""))) : v;
}

template <class V>
COLLECTIVES_INLINE Pair<V> quiet(Pair<V> v) {
    return {quiet(v.first), quiet(v.second)};
}

// Whether any lane of either vector is NaN.
template <class V>
COLLECTIVES_INLINE bool any_nan(V a, V b) {
    [[maybe_unused]] constexpr int bytes = sizeof(V);
    [[maybe_unused]] constexpr bool single = sizeof(a[0]) == 4;
#if defined(__AVX512F__)
    if constexpr (bytes == 64 && single) return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q) != 0;
    if constexpr (bytes == 64) return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_UNORD_Q) != 0;
#elif defined(__AVX2__)
    if constexpr (bytes == 32 && single)
        return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q)) != 0;
    if constexpr (bytes == 32)
        return _mm256_movemask_pd(_mm256_cmp_pd((__m256d)a, (__m256d)b, _CMP_UNORD_Q)) != 0;
#elif defined(__x86_64__)
    if constexpr (bytes == 16 && single) return _mm_movemask_ps(_mm_cmpunord_ps((__m128)a, (__m128)b)) != 0;
    if constexpr (bytes == 16) return _mm_movemask_pd(_mm_cmpunord_pd((__m128d)a, (__m128d)b)) != 0;
#elif defined(__aarch64__)
    return vmaxvq_u32((uint32x4_t)((a != a) | (b != b))) != 0;
#else
    bool found = false;
    for (int lane = 0; lane < bytes / static_cast<int>(sizeof(a[0])); ++lane)
        found |= a[lane] != a[lane] || b[lane] != b[lane];
    return found;
#endif
}

template <class V>
COLLECTIVES_INLINE bool any_nan(const Pair<V> (&v)[2]) {
    return any_nan(v[0].first, v[0].second) || any_nan(v[1].first, v[1].second);
}

template <class V>
COLLECTIVES_INLINE bool any_nan(const V (&v)[2]) {
    return any_nan(v[0], v[1]);
}

template <class V>
COLLECTIVES_INLINE bool any_nan(const V (&v)[4]) {
    return any_nan(v[0], v[1]) || any_nan(v[2], v[3]);
}

// Loads and unpacks B bytes.
template <class F, int B>
COLLECTIVES_INLINE auto read(const std::byte* p) {
    if constexpr (requires { F::template unpack_from<B>(p); })
        return F::template unpack_from<B>(p);
    else
        return F::template unpack<B>(load<B>(p));
}

// Numbers that need no conversion.
template <class T>
struct Plain {
    static constexpr std::size_t unit = sizeof(T);
    static constexpr bool has_nan = std::is_floating_point_v<T>;
    using Scale = T;

    template <int B>
    static COLLECTIVES_INLINE Vec<T, B> unpack(Raw<B> raw) {
        return as<Vec<T, B>>(raw);
    }

    template <int B>
    static COLLECTIVES_INLINE Raw<B> pack(Vec<T, B> v) {
        return as<Raw<B>>(v);
    }
};

// Integers whose average has the sign of T: their sums wrap around, as those of unsigned ones do.
template <class T>
struct Whole : Plain<std::make_unsigned_t<T>> {
    using Scale = T;
};

// Truth values: a number is true unless it is zero. Lanes have only ones or only zeros, stored as 1 or 0.
template <class T>
struct Truth {
    static constexpr std::size_t unit = sizeof(T);
    static constexpr bool has_nan = false;
    using Scale = T;

    template <int B>
    static COLLECTIVES_INLINE Vec<T, B> unpack(Raw<B> raw) {
        return as<Vec<T, B>>(as<Vec<T, B>>(raw) != Vec<T, B>{});
    }

    template <int B>
    static COLLECTIVES_INLINE Raw<B> pack(Vec<T, B> v) {
        return as<Raw<B>>(v & (Vec<T, B>{} + T{1}));
    }
};

// bfloat16 is the upper half of a float32, so a 32-bit word holds two without any shuffling.
struct Bfloat16 {
    static constexpr std::size_t unit = 2;
    static constexpr bool has_nan = true;
    using Scale = float;

    template <int B>
    static COLLECTIVES_INLINE Pair<Vec<float, B>> unpack(Raw<B> raw) {
        const auto words = as<Vec<std::uint32_t, B>>(raw);
        return {as<Vec<float, B>>(words << 16), as<Vec<float, B>>(words & 0xffff0000u)};
    }

    // Adding half of the last place rounds to nearest, with ties away from zero. After a tie, all lower bits
    // are zero, and clearing the last bit makes the result even. This handles all 16-bit halves together.
    // AVX512_BF16 has an instruction for this, but it turns subnormal numbers to zeros, so its results would
    // differ from those of other instruction sets.
    template <int B>
    static COLLECTIVES_INLINE Raw<B> pack(Pair<Vec<float, B>> v) {
        using Halves = Vec<std::uint16_t, B>;
        const typename CountLanes<B / 2>::type lanes;
        const auto first = as<Vec<std::uint32_t, B>>(v.first) + 0x8000u;
        const auto second = as<Vec<std::uint32_t, B>>(v.second) + 0x8000u;
        const Halves above = alternating(as<Halves>(first >> 16), as<Halves>(second), lanes);
        const Halves below = alternating(as<Halves>(first), as<Halves>(second << 16), lanes);
        const Halves tie = as<Halves>(below == Halves{}) & (Halves{} + std::uint16_t{1});
        return as<Raw<B>>(above & ~tie);
    }
};

#if !defined(__F16C__) && !defined(__aarch64__)

// float16 to float32, one number in each 32-bit lane, by integer arithmetic.
template <int B>
COLLECTIVES_INLINE Vec<float, B> widen(Vec<std::uint32_t, B> half) {
    using U = Vec<std::uint32_t, B>;
    const U magnitude = (half & 0x7fffu) << 13;
    const U sign = (half & 0x8000u) << 16;
    const U rebiased = magnitude + (112u << 23);
    const U infinite = magnitude + (224u << 23);  // or NaN
    // The mantissa of a subnormal number, with a leading one in front, which is then subtracted.
    const U one_below = U{} + (113u << 23);
    const U subnormal = as<U>(as<Vec<float, B>>(magnitude + one_below) - as<Vec<float, B>>(one_below));
    // Signed comparisons, since SSE2 has no others; the values are small enough.
    using I = Vec<std::int32_t, B>;
    const U finite = as<I>(magnitude) < (0x0400 << 13) ? subnormal : rebiased;
    return as<Vec<float, B>>((as<I>(magnitude) >= (0x7c00 << 13) ? infinite : finite) | sign);
}

// float32 to float16, rounded to nearest even, in the low half of each 32-bit lane.
template <int B>
COLLECTIVES_INLINE Vec<std::uint32_t, B> narrow(Vec<float, B> v) {
    using U = Vec<std::uint32_t, B>;
    using I = Vec<std::int32_t, B>;
    const U bits = as<U>(v);
    const U magnitude = bits & 0x7fffffffu;
    const U sign = (bits >> 16) & 0x8000u;
    // Adding 0.5 to a number below 2^-14 makes the lowest bits the mantissa of the subnormal float16, rounded
    // by the addition.
    const U half_one = U{} + (126u << 23);
    const U subnormal = as<U>(as<Vec<float, B>>(magnitude) + as<Vec<float, B>>(half_one)) - half_one;
    const U normal = (magnitude + (((magnitude >> 13) & 1u) + 0xfffu - (112u << 23))) >> 13;
    const U finite = as<I>(magnitude) < (113 << 23) ? subnormal : normal;
    const U overflown = as<I>(magnitude) > (255 << 23) ? U{} + 0x7e00u : U{} + 0x7c00u;
    return (as<I>(magnitude) >= (143 << 23) ? overflown : finite) | sign;
}

#endif

struct Float16 {
    static constexpr std::size_t unit = 2;
    static constexpr bool has_nan = true;
    using Scale = float;

    template <int B>
    static COLLECTIVES_INLINE Pair<Vec<float, B>> unpack(Raw<B> raw) {
#if defined(__F16C__)
        static_assert(B == 16);
        const auto x = (__m128i)raw;
        return {(Vec<float, B>)_mm_cvtph_ps(x), (Vec<float, B>)_mm_cvtph_ps(_mm_unpackhi_epi64(x, x))};
#elif defined(__aarch64__)
        const auto x = vreinterpretq_f16_u8((uint8x16_t)raw);
        return {(Vec<float, B>)vcvt_f32_f16(vget_low_f16(x)), (Vec<float, B>)vcvt_high_f32_f16(x)};
#else
        const auto words = as<Vec<std::uint32_t, B>>(raw);
        return {widen<B>(words & 0xffffu), widen<B>(words >> 16)};
#endif
    }

#if defined(__F16C__)
    // The conversion reads from memory, because halves of a register would have to be moved first.
    template <int B>
    static COLLECTIVES_INLINE Pair<Vec<float, B>> unpack_from(const std::byte* p)
        requires(B == width)
    {
        using V = Vec<float, B>;
#if defined(__AVX512F__)
        return {(V)_mm512_cvtph_ps((__m256i)load<32>(p)), (V)_mm512_cvtph_ps((__m256i)load<32>(p + 32))};
#else
        return {(V)_mm256_cvtph_ps((__m128i)load<16>(p)), (V)_mm256_cvtph_ps((__m128i)load<16>(p + 16))};
#endif
    }
#endif

    template <int B>
    static COLLECTIVES_INLINE Raw<B> pack(Pair<Vec<float, B>> v) {
        // 0 means to nearest even, whatever rounding mode the process has set.
#if defined(__F16C__)
        if constexpr (B == 16)
            return (Raw<B>)_mm_unpacklo_epi64(_mm_cvtps_ph((__m128)v.first, 0),
                                              _mm_cvtps_ph((__m128)v.second, 0));
        if constexpr (B == 32)
            return (Raw<B>)_mm256_set_m128i(_mm256_cvtps_ph((__m256)v.second, 0),
                                            _mm256_cvtps_ph((__m256)v.first, 0));
#if defined(__AVX512F__)
        if constexpr (B == 64)
            return (Raw<B>)_mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph((__m512)v.first, 0)),
                                              _mm512_cvtps_ph((__m512)v.second, 0), 1);
#endif
#elif defined(__aarch64__)
        return (Raw<B>)vcvt_high_f16_f32(vcvt_f16_f32((float32x4_t)v.first), (float32x4_t)v.second);
#else
        return as<Raw<B>>(narrow<B>(v.first) | narrow<B>(v.second) << 16);
#endif
    }
};

}  // namespace
}  // namespace collectives
