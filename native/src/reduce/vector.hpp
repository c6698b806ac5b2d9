// Vectors of the width for which the including file is compiled, and their loads and stores.
//
// Invariant: nothing here has external linkage. The file is compiled once for each instruction set, and the
// linker must not merge a function that uses AVX-512 with the function of the same name for plain x86-64. For
// the same reason, no function of the standard library is used that might not be inlined.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define COLLECTIVES_INLINE __attribute__((always_inline)) inline

namespace collectives {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "16-bit floats are taken apart as 32-bit words");

template <class T, int Bytes>
struct VectorOf {
    typedef T type __attribute__((vector_size(Bytes)));
};

// Bytes / sizeof(T) lanes of T.
template <class T, int Bytes>
using Vec = typename VectorOf<T, Bytes>::type;

// A vector as bytes in memory.
template <int Bytes>
using Raw = Vec<unsigned char, Bytes>;

#if defined(__AVX512F__)
constexpr int width = 64;
#elif defined(__AVX2__)
constexpr int width = 32;
#else
constexpr int width = 16;
#endif

// The same bits as another type.
template <class To, class From>
COLLECTIVES_INLINE To as(From v) {
    static_assert(sizeof(To) == sizeof(From));
    return (To)v;
}

template <class To, class From>
COLLECTIVES_INLINE To bits_of(From x) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &x, sizeof(to));
    return to;
}

template <int B>
COLLECTIVES_INLINE Vec<float, B> broadcast(float x) {
    return as<Vec<float, B>>(Vec<std::uint32_t, B>{} + bits_of<std::uint32_t>(x));
}

template <int B>
COLLECTIVES_INLINE Vec<double, B> broadcast(double x) {
    return as<Vec<double, B>>(Vec<std::uint64_t, B>{} + bits_of<std::uint64_t>(x));
}

template <int B>
COLLECTIVES_INLINE Raw<B> load(const std::byte* p) {
    Raw<B> v;
    __builtin_memcpy(&v, p, B);
    return v;
}

template <int B>
COLLECTIVES_INLINE void store(std::byte* p, Raw<B> v) {
    __builtin_memcpy(p, &v, B);
}

// Stores past the caches; `p` is aligned to B. Stores to one cache line should follow each other directly.
template <int B>
COLLECTIVES_INLINE void store_streaming(std::byte* p, Raw<B> v) {
#if defined(__x86_64__)
#if defined(__AVX512F__)
    if constexpr (B == 64) _mm512_stream_si512(reinterpret_cast<__m512i*>(p), (__m512i)v);
#endif
#if defined(__AVX2__)
    if constexpr (B == 32) _mm256_stream_si256(reinterpret_cast<__m256i*>(p), (__m256i)v);
#endif
    if constexpr (B == 16) _mm_stream_si128(reinterpret_cast<__m128i*>(p), (__m128i)v);
#else
    store<B>(p, v);
#endif
}

// Makes streaming stores visible before any later store.
COLLECTIVES_INLINE void fence_streaming() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

template <class T>
COLLECTIVES_INLINE std::uint64_t word(const std::byte* p) {
    T x;
    __builtin_memcpy(&x, p, sizeof(x));
    return x;
}

template <class T>
COLLECTIVES_INLINE void put(std::byte* p, std::uint64_t x) {
    const T low = static_cast<T>(x);
    __builtin_memcpy(p, &low, sizeof(low));
}

// Loads 1 to 8 bytes by two overlapping loads. Both use general registers, because a vector load from bytes
// that were just stored one by one would wait until the store buffer is empty.
COLLECTIVES_INLINE std::uint64_t load_up_to_8(const std::byte* p, std::size_t n) {
    if (n == 8) return word<std::uint64_t>(p);
    if (n >= 4) return word<std::uint32_t>(p) | word<std::uint32_t>(p + n - 4) << (8 * (n - 4));
    if (n >= 2) return word<std::uint16_t>(p) | word<std::uint16_t>(p + n - 2) << (8 * (n - 2));
    return word<std::uint8_t>(p);
}

COLLECTIVES_INLINE void store_up_to_8(std::byte* p, std::size_t n, std::uint64_t x) {
    if (n == 8) {
        put<std::uint64_t>(p, x);
    } else if (n >= 4) {
        put<std::uint32_t>(p, x);
        put<std::uint32_t>(p + n - 4, x >> (8 * (n - 4)));
    } else if (n >= 2) {
        put<std::uint16_t>(p, x);
        put<std::uint16_t>(p + n - 2, x >> (8 * (n - 2)));
    } else {
        put<std::uint8_t>(p, x);
    }
}

// The first 1 to 15 bytes of a vector; the rest is zero.
COLLECTIVES_INLINE Raw<16> load_part(const std::byte* p, std::size_t n) {
    Vec<std::uint64_t, 16> v{};
    if (n <= 8) {
        v[0] = load_up_to_8(p, n);
    } else {
        v[0] = word<std::uint64_t>(p);
        v[1] = load_up_to_8(p + 8, n - 8);
    }
    return as<Raw<16>>(v);
}

COLLECTIVES_INLINE void store_part(std::byte* p, std::size_t n, Raw<16> raw) {
    const auto v = as<Vec<std::uint64_t, 16>>(raw);
    if (n <= 8) {
        store_up_to_8(p, n, v[0]);
    } else {
        put<std::uint64_t>(p, v[0]);
        store_up_to_8(p + 8, n - 8, v[1]);
    }
}

template <std::size_t... Lane>
struct Lanes {};

template <std::size_t N, std::size_t... Lane>
struct CountLanes : CountLanes<N - 1, N - 1, Lane...> {};

template <std::size_t... Lane>
struct CountLanes<0, Lane...> {
    using type = Lanes<Lane...>;
};

// Selects lanes of `v`; `lane` is an expression over the parameter pack Lane.
#if defined(__clang__)
#define COLLECTIVES_SHUFFLE(v, lane) __builtin_shufflevector(v, v, static_cast<int>(lane)...)
#else
#define COLLECTIVES_SHUFFLE(v, lane) __builtin_shuffle(v, decltype(v == v){static_cast<long>(lane)...})
#endif

// (v1, v0, v3, v2, ...), (v0, v0, v2, v2, ...) and (v1, v1, v3, v3, ...)
template <class V, std::size_t... Lane>
COLLECTIVES_INLINE V swapped(V v, Lanes<Lane...>) {
    return COLLECTIVES_SHUFFLE(v, (Lane ^ 1));
}

template <class V, std::size_t... Lane>
COLLECTIVES_INLINE V evens(V v, Lanes<Lane...>) {
    return COLLECTIVES_SHUFFLE(v, (Lane & ~std::size_t{1}));
}

template <class V, std::size_t... Lane>
COLLECTIVES_INLINE V odds(V v, Lanes<Lane...>) {
    return COLLECTIVES_SHUFFLE(v, (Lane | 1));
}

// (a0, b1, a2, b3, ...)
template <class V, std::size_t... Lane>
COLLECTIVES_INLINE V alternating(V a, V b, Lanes<Lane...>) {
    constexpr decltype(a == b) from_a{(Lane % 2 == 0 ? -1 : 0)...};
    return from_a ? a : b;
}

}  // namespace
}  // namespace collectives
