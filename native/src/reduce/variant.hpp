// The kernels; each file of an instruction set includes this with its instruction set switched on.
//
// Invariant: the result of an element is computed by the same operations in the same order, wherever in the
// array it is. All operands of a block are loaded before any result is stored, so the output may be one of
// the sources. See vector.hpp for why nothing here has external linkage.
#pragma once

#include "base/copy.hpp"
#include "reduce/division.hpp"
#include "reduce/formats.hpp"
#include "reduce/reduce.hpp"

namespace collectives {
namespace {

struct Sum {
    template <class V>
    static COLLECTIVES_INLINE V apply(V a, V b) {
        return a + b;
    }
};

struct Prod {
    template <class V>
    static COLLECTIVES_INLINE V apply(V a, V b) {
        return a * b;
    }
};

// `b != b` selects a NaN on the right; a NaN on the left stays, because every comparison with it is false.
struct Min {
    template <class V>
    static COLLECTIVES_INLINE V apply(V a, V b) {
        return ((b < a) | (b != b)) ? b : a;
    }
};

struct Max {
    template <class V>
    static COLLECTIVES_INLINE V apply(V a, V b) {
        return ((b > a) | (b != b)) ? b : a;
    }
};

struct And {
    template <class V>
    static COLLECTIVES_INLINE V apply(V a, V b) {
        return a & b;
    }
};

struct Or {
    template <class V>
    static COLLECTIVES_INLINE V apply(V a, V b) {
        return a | b;
    }
};

struct Xor {
    template <class V>
    static COLLECTIVES_INLINE V apply(V a, V b) {
        return a ^ b;
    }
};

// Real and imaginary parts alternate: (ar*br - ai*bi, ai*br + ar*bi).
struct ComplexProd {
    template <class V>
    static COLLECTIVES_INLINE V apply(V a, V b) {
        constexpr int bytes = sizeof(V);
        constexpr int part = sizeof(a[0]);
        using Word = decltype(word_of(a[0]));
        const typename CountLanes<bytes / part>::type lanes;
        // The sign bit of every real part: adding the negative of a number is the same as subtracting it.
        const auto positions = Vec<Word, bytes>{} + (Word{1} << (8 * part - 1));
        const auto negate = as<V>(evens_only<Word, bytes>(positions, lanes));
        const V crossed = swapped(a, lanes) * odds(b, lanes);
        return a * evens(b, lanes) + as<V>(as<Vec<Word, bytes>>(crossed) ^ as<Vec<Word, bytes>>(negate));
    }

  private:
    static std::uint32_t word_of(float);
    static std::uint64_t word_of(double);

    template <class Word, int B, std::size_t... Lane>
    static COLLECTIVES_INLINE Vec<Word, B> evens_only(Vec<Word, B> v, Lanes<Lane...>) {
        return v & Vec<Word, B>{static_cast<Word>(Lane % 2 == 0 ? ~Word{0} : Word{0})...};
    }
};

// What one kernel does: a format, an operation, and whether the result is scaled.
template <class F, class O, bool Scaled_, std::size_t Unit = F::unit>
struct Kernel {
    using Format = F;
    using Operation = O;
    static constexpr bool scaled = Scaled_;
    // Bytes of one element or complex number; blocks and edges consist of whole units.
    static constexpr std::size_t unit = Unit;
};

template <class O, class V>
COLLECTIVES_INLINE V combine(V a, V b) {
    return O::apply(a, b);
}

template <class O, class V>
COLLECTIVES_INLINE Pair<V> combine(Pair<V> a, Pair<V> b) {
    return {O::apply(a.first, b.first), O::apply(a.second, b.second)};
}

// The last step of an average. Dividing by n is correctly rounded, multiplying by 1/n would not be.
template <class T>
struct Scaler {
    T factor = 1;
    bool divide = false;

    static Scaler from(double scale) {
        const double divisor = 1.0 / scale;
        const bool integral = divisor >= 1 && divisor <= 16777216.0 &&
                              1.0 / static_cast<double>(static_cast<std::int64_t>(divisor + 0.5)) == scale;
        if (!integral) return {static_cast<T>(scale), false};
        const auto n = static_cast<std::int64_t>(divisor + 0.5);
        // Multiplying by a power of two is as exact as dividing, and faster.
        if ((n & (n - 1)) == 0) return {static_cast<T>(scale), false};
        return {static_cast<T>(n), true};
    }

    template <int B>
    COLLECTIVES_INLINE Vec<T, B> operator()(Vec<T, B> v) const {
        return divide ? v / broadcast<B>(factor) : v * broadcast<B>(factor);
    }
};

// Of integers, whose sums are unsigned because these wrap around. The sign is that of `T`.
template <class T>
    requires std::is_integral_v<T>
struct Scaler<T> {
    using U = std::make_unsigned_t<T>;
    Reciprocal<U> reciprocal{};

    // `scale`: the reciprocal of an integer up to 2^31. Its own reciprocal, rounded twice, is almost that
    // integer.
    static Scaler from(double scale) {
        return {Reciprocal<U>::of(static_cast<std::uint64_t>(1.0 / scale + 0.5))};
    }

    template <int B>
    COLLECTIVES_INLINE Vec<U, B> operator()(Vec<U, B> v) const {
        if constexpr (std::is_signed_v<T>) {
            const auto negative = as<Vec<U, B>>(as<Vec<T, B>>(v) < Vec<T, B>{});  // -1 if it is, else 0
            const Vec<U, B> magnitude = (v ^ negative) - negative;
            return (reciprocal.template quotients<B>(magnitude) ^ negative) - negative;
        } else {
            return reciprocal.template quotients<B>(v);
        }
    }
};

template <int B, class S, class V>
COLLECTIVES_INLINE V scale_by(const S& scaler, V v) {
    return scaler.template operator()<B>(v);
}

template <int B, class S, class V>
COLLECTIVES_INLINE Pair<V> scale_by(const S& scaler, Pair<V> v) {
    return {scaler.template operator()<B>(v.first), scaler.template operator()<B>(v.second)};
}

template <class K>
using ScalerOf = Scaler<typename K::Format::Scale>;

// The number of vectors that are processed together: as many as fit into the registers.
template <class F>
constexpr int vectors = width == 64 || sizeof(read<F, width>(nullptr)) > width ? 2 : 4;

template <class F>
constexpr std::size_t step = vectors<F> * width;

template <class F>
using Vectors = typename CountLanes<vectors<F>>::type;

// The destination of results: one, or several.
struct One {
    static constexpr bool is_several = false;
    std::byte* place;

    std::byte* first() const { return place; }
    template <class Put>
    COLLECTIVES_INLINE void each(Put put) const {
        put(place);
    }
};

struct Several {
    static constexpr bool is_several = true;
    std::byte* const* places;
    std::size_t n;

    std::byte* first() const { return places[0]; }
    template <class Put>
    COLLECTIVES_INLINE void each(Put put) const {
        for (std::size_t i = 0; i < n; ++i) put(places[i]);
    }
};

template <Stores S>
COLLECTIVES_INLINE void put(std::byte* dst, Raw<width> raw) {
    if constexpr (S == Stores::streaming)
        store_streaming<width>(dst, raw);
    else
        store<width>(dst, raw);
}

// One step at byte `at`. `V`: the numbers of its vectors. They are expanded instead of looped over, since in
// a loop the compiler may keep the vectors in memory.
template <class K, Stores S, class To, std::size_t... V>
COLLECTIVES_INLINE void block(const To& dst, const std::byte* const* sources, std::size_t n, std::size_t at,
                              const ScalerOf<K>& scaler, Lanes<V...>) {
    using F = typename K::Format;
    decltype(read<F, width>(sources[0])) acc[] = {read<F, width>(sources[0] + at + V * width)...};
    for (std::size_t s = 1; s < n; ++s)
        ((acc[V] = combine<typename K::Operation>(acc[V], read<F, width>(sources[s] + at + V * width))), ...);
    if constexpr (K::scaled) ((acc[V] = scale_by<width>(scaler, acc[V])), ...);
    if constexpr (F::has_nan)
        if (any_nan(acc)) [[unlikely]]
            ((acc[V] = quiet(acc[V])), ...);
    dst.each(
        [&](std::byte* place) { (put<S>(place + at + V * width, F::template pack<width>(acc[V])), ...); });
}

// Bytes [begin, end), for the ends of arrays and for arrays shorter than a step.
template <class K>
[[gnu::noinline]] void edge(const One& to, const std::byte* const* sources, std::size_t n, std::size_t begin,
                            std::size_t end, const ScalerOf<K>& scaler) {
    using F = typename K::Format;
    std::byte* const dst = to.place;
    const auto reduced = [&](auto read) {
        auto acc = F::template unpack<16>(read(sources[0]));
        for (std::size_t s = 1; s < n; ++s)
            acc = combine<typename K::Operation>(acc, F::template unpack<16>(read(sources[s])));
        if constexpr (K::scaled) acc = scale_by<16>(scaler, acc);
        if constexpr (F::has_nan) acc = quiet(acc);
        return F::template pack<16>(acc);
    };
    for (; end - begin >= 16; begin += 16)
        store<16>(dst + begin, reduced([&](const std::byte* p) { return load<16>(p + begin); }));
    if (begin != end)
        store_part(dst + begin, end - begin,
                   reduced([&](const std::byte* p) { return load_part(p + begin, end - begin); }));
}

template <class K>
void edge(const Several& dst, const std::byte* const* sources, std::size_t n, std::size_t begin,
          std::size_t end, const ScalerOf<K>& scaler) {
    edge<K>(One{dst.first()}, sources, n, begin, end, scaler);
    for (std::size_t i = 1; i < dst.n; ++i)
        __builtin_memcpy(dst.places[i] + begin, dst.first() + begin, end - begin);
}

// N sources, or if N is 0 as many as `n` says.
template <class K, Stores S, std::size_t N, class To>
COLLECTIVES_INLINE std::size_t blocks(const To& dst, const std::byte* const* sources, std::size_t n,
                                      std::size_t at, std::size_t bytes, const ScalerOf<K>& scaler) {
    using F = typename K::Format;
    if constexpr (N == 0) {
        for (; bytes - at >= step<F>; at += step<F>) block<K, S>(dst, sources, n, at, scaler, Vectors<F>{});
    } else {
        // Copied, because the compiler must assume that results may overwrite the caller's list.
        const std::byte* fixed[N];
        for (std::size_t s = 0; s < N; ++s) fixed[s] = sources[s];
        for (; bytes - at >= step<F>; at += step<F>) block<K, S>(dst, fixed, N, at, scaler, Vectors<F>{});
    }
    return at;
}

// From this size on it is faster to process the elements up to the output's next cache line first.
constexpr std::size_t worth_aligning = 1024;
constexpr std::size_t line = 64;

template <class K, Stores S, bool Unrolled, class To>
[[gnu::noinline]] void run(const To& dst, const std::byte* const* sources, std::size_t n, std::size_t bytes,
                           const ScalerOf<K>& scaler) {
    std::size_t at = 0;
    if (bytes >= worth_aligning) {
        const std::size_t head = -reinterpret_cast<std::uintptr_t>(dst.first()) % line;
        if (head % K::unit == 0) {
            if (head != 0) edge<K>(dst, sources, n, 0, head, scaler);
            at = head;
        } else if constexpr (S == Stores::streaming) {
            return run<K, Stores::cached, Unrolled>(dst, sources, n, bytes, scaler);
        }
        if (Unrolled && (S == Stores::cached || To::is_several) && n == 2)
            at = blocks<K, S, 2>(dst, sources, n, at, bytes, scaler);
        else
            at = blocks<K, S, 0>(dst, sources, n, at, bytes, scaler);
        if constexpr (S == Stores::streaming) fence_streaming();
    } else {
        at = blocks<K, Stores::cached, 0>(dst, sources, n, at, bytes, scaler);
    }
    if (at != bytes) edge<K>(dst, sources, n, at, bytes, scaler);
}

// `ElementBytes`: bytes per element. Types with the same arithmetic share the code above.
template <class K, Stores S, bool Unrolled, std::size_t ElementBytes, bool Copies>
void entry(std::byte* dst, const std::byte* const* sources, std::size_t n, std::size_t count, double scale) {
    const std::size_t bytes = count * ElementBytes;
    if (Copies && n == 1 && (!K::scaled || scale == 1.0)) {
        copy_bytes(dst, sources[0], bytes);
        return;
    }
    ScalerOf<K> scaler;
    if constexpr (K::scaled) scaler = ScalerOf<K>::from(scale);
    run<K, S, Unrolled>(One{dst}, sources, n, bytes, scaler);
}

template <class K, std::size_t ElementBytes>
void entry_several(std::byte* const* dsts, std::size_t n_dsts, const std::byte* const* sources, std::size_t n,
                   std::size_t count, double scale) {
    ScalerOf<K> scaler;
    if constexpr (K::scaled) scaler = ScalerOf<K>::from(scale);
    run<K, Stores::streaming, true>(Several{dsts, n_dsts}, sources, n, count * ElementBytes, scaler);
}

}  // namespace
}  // namespace collectives
