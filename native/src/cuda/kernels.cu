// The kernels that reduce and move arrays: those of all ranks that share a device, which one rank reads and
// writes, or the operands of a reduction in a schedule.
//
// NVRTC compiles this file for a device while the program runs, once for each element type and
// operation that is used: COLLECTIVES_ELEMENT and COLLECTIVES_OP name them. The stand-in for the driver, which
// tests use, is compiled from it, too, with one thread in each block.
//
// Invariant: an element of a result has the same bits as on the CPU (reduce/reduce.hpp): operands are combined
// in the order of ranks, float16 and bfloat16 in float32, and rounded once. A block of threads looks at the
// epoch of a rank each time before it writes a tile of that rank's output. All inputs of an element are read
// before it is written, by one thread, so an output may be the same array as an input.
#include "cuda/kernel_arguments.hpp"

namespace collectives::cuda {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;

// Codes of Op, in base/types.hpp
enum : u32 { op_sum, op_prod, op_min, op_max, op_avg, op_band, op_bor, op_bxor, op_land, op_lor, op_lxor };

template <class To, class From>
__device__ __forceinline__ To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "the same number of bits");
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}

// --- numbers

template <class T>
__device__ __forceinline__ T combine_floats(T a, T b, u32 op) {
    switch (op) {
        case op_prod:
            return a * b;
        case op_min:
            return b < a || b != b ? b : a;
        case op_max:
            return b > a || b != b ? b : a;
        default:
            return a + b;
    }
}

// Integers wrap around, so sums and products are those of unsigned ones.
template <class T, class Unsigned>
__device__ __forceinline__ T combine_integers(T a, T b, u32 op) {
    switch (op) {
        case op_sum:
        case op_avg:
            return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
        case op_prod:
            return static_cast<T>(static_cast<Unsigned>(a) * static_cast<Unsigned>(b));
        case op_min:
            return b < a ? b : a;
        case op_max:
            return b > a ? b : a;
        case op_band:
            return static_cast<T>(a & b);
        case op_bor:
            return static_cast<T>(a | b);
        case op_bxor:
            return static_cast<T>(a ^ b);
        case op_land:
            return static_cast<T>(a != 0 && b != 0);
        case op_lor:
            return static_cast<T>(a != 0 || b != 0);
        default:
            return static_cast<T>((a != 0) != (b != 0));
    }
}

__device__ __forceinline__ float quiet(float value) {
    return value != value ? bits<float>(0x7fc00000u) : value;
}
__device__ __forceinline__ double quiet(double value) {
    return value != value ? bits<double>(0x7ff8000000000000ull) : value;
}

// --- element types: Stored is in memory, Sum is what operands are combined in

template <class T>
struct Floating {
    using Stored = T;
    using Sum = T;
    static __device__ __forceinline__ Sum widen(Stored value) { return value; }
    static __device__ __forceinline__ Sum combine(Sum a, Sum b, u32 op) { return combine_floats(a, b, op); }
    static __device__ __forceinline__ Stored narrow(Sum value, u32 op, u32 ranks) {
        return quiet(op == op_avg ? value / static_cast<T>(ranks) : value);
    }
};
using float32 = Floating<float>;
using float64 = Floating<double>;

struct bfloat16 {
    using Stored = u16;
    using Sum = float;
    static __device__ __forceinline__ Sum widen(Stored value) {
        return bits<float>(static_cast<u32>(value) << 16);
    }
    static __device__ __forceinline__ Sum combine(Sum a, Sum b, u32 op) { return combine_floats(a, b, op); }
    static __device__ __forceinline__ Stored narrow(Sum value, u32 op, u32 ranks) {
        const u32 wide = bits<u32>(float32::narrow(value, op, ranks));
        return static_cast<u16>((wide + 0x7fffu + (wide >> 16 & 1u)) >> 16);
    }
};

struct float16 {
    using Stored = u16;
    using Sum = float;
    static __device__ __forceinline__ Sum widen(Stored value) {
#if defined(__CUDA_ARCH__)
        float wide;
        asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value));
        return wide;
#else
        return static_cast<float>(bits<_Float16>(value));
#endif
    }
    static __device__ __forceinline__ Sum combine(Sum a, Sum b, u32 op) { return combine_floats(a, b, op); }
    static __device__ __forceinline__ Stored narrow(Sum value, u32 op, u32 ranks) {
        const float wide = float32::narrow(value, op, ranks);
        if (wide != wide) return 0x7e00;
#if defined(__CUDA_ARCH__)
        u16 half;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(wide));
        return half;
#else
        return bits<u16>(static_cast<_Float16>(wide));
#endif
    }
};

template <class T, class Unsigned = u32>
struct Integer {
    using Stored = T;
    using Sum = T;
    static __device__ __forceinline__ Sum widen(Stored value) { return value; }
    static __device__ __forceinline__ Sum combine(Sum a, Sum b, u32 op) {
        return combine_integers<T, Unsigned>(a, b, op);
    }
    static __device__ __forceinline__ Stored narrow(Sum value, u32 op, u32 ranks) {
        if (op == op_avg) return static_cast<T>(value / static_cast<decltype(value + 0)>(ranks));
        return op >= op_land ? static_cast<T>(value != 0) : value;
    }
};
using int8 = Integer<signed char>;
using int16 = Integer<short>;
using int32 = Integer<int>;
using int64 = Integer<long long, u64>;
using uint8 = Integer<u8>;
using uint16 = Integer<u16>;
using uint32 = Integer<u32>;
using uint64 = Integer<u64, u64>;

// A byte that is true if it is not 0. Sums and maxima are "or", products and minima "and".
struct boolean {
    using Stored = u8;
    using Sum = u8;
    static __device__ __forceinline__ Sum widen(Stored value) { return value != 0; }
    static __device__ __forceinline__ Sum combine(Sum a, Sum b, u32 op) {
        switch (op) {
            case op_sum:
            case op_max:
            case op_bor:
            case op_lor:
                return a | b;
            case op_prod:
            case op_min:
            case op_band:
            case op_land:
                return a & b;
            default:
                return a ^ b;
        }
    }
    static __device__ __forceinline__ Stored narrow(Sum value, u32, u32) { return value; }
};

template <class T>
struct Complex {
    struct alignas(2 * sizeof(T)) Stored {
        T real;
        T imaginary;
    };
    using Sum = Stored;
    static __device__ __forceinline__ Sum widen(Stored value) { return value; }
    static __device__ __forceinline__ Sum combine(Sum a, Sum b, u32 op) {
        if (op != op_prod) return {a.real + b.real, a.imaginary + b.imaginary};
        return {a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
    }
    static __device__ __forceinline__ Stored narrow(Sum value, u32 op, u32 ranks) {
        return {Floating<T>::narrow(value.real, op, ranks), Floating<T>::narrow(value.imaginary, op, ranks)};
    }
};
using complex64 = Complex<float>;
using complex128 = Complex<double>;

// --- tiles

constexpr u32 vector_bytes = 16;

template <class T>
struct alignas(vector_bytes) Vector {
    static constexpr u32 lanes = vector_bytes / sizeof(T);
    T lane[lanes];
};

// The vectors that a thread has under way at the same time.
constexpr u32 vectors = 4;

template <class T>
__device__ __forceinline__ T load(u64 address) {
    return *reinterpret_cast<const T*>(address);
}
template <class T>
__device__ __forceinline__ void store(u64 address, T value) {
    *reinterpret_cast<T*>(address) = value;
}
template <class T>
__device__ __forceinline__ Vector<T> load_vector(u64 address) {
    return bits<Vector<T>>(*reinterpret_cast<const uint4*>(address));
}
template <class T>
__device__ __forceinline__ void store_vector(u64 address, Vector<T> value) {
    *reinterpret_cast<uint4*>(address) = bits<uint4>(value);
}

// Which ranks may be written, as the threads of a block see it.
struct Epochs {
    u8* alive;  // of this tile, by rank

    // All threads look before the tile is written. `first`: one of the tile's two sets of bytes, by turns, so
    // that one barrier is enough.
    __device__ __forceinline__ void look(const KernelArguments& a, u8* set) {
        alive = set;
        const auto goes_on = [&](u32 rank) {
            return a.epoch[rank] == 0 || *reinterpret_cast<const volatile u32*>(a.epoch[rank]) == a.wanted;
        };
        for (u32 rank = threadIdx.x; rank < a.size; rank += blockDim.x) {
            alive[rank] = a.out[rank] != 0 && goes_on(a.leader) && goes_on(rank);
        }
        __syncthreads();
    }
};

// Calls tile(part, begin, end, epochs) for the tiles that this block of threads has of all parts, which have
// `bytes` bytes each.
template <class Tile>
__device__ __forceinline__ void for_each_tile(const KernelArguments& a, u64 parts, u64 bytes, Tile tile) {
    __shared__ u8 sets[2][most_ranks];
    const u64 step = static_cast<u64>(blockDim.x) * vectors * vector_bytes;
    const u64 each = (bytes + step - 1) / step;
    Epochs epochs{nullptr};
    u32 turn = 0;
    for (u64 i = blockIdx.x; i < parts * each; i += gridDim.x) {
        epochs.look(a, sets[turn]);
        turn ^= 1;
        const u64 begin = i % each * step;
        const u64 end = begin + step < bytes ? begin + step : bytes;
        tile(i / each, begin, end, epochs);
    }
}

// All addresses of the call, to see how they are aligned.
__device__ __forceinline__ u64 all_bits(const KernelArguments& a) {
    u64 found = 0;
    for (u32 rank = 0; rank < a.size; ++rank) found |= a.in[rank] | a.out[rank];
    return found;
}

// --- reductions

template <class Element>
__device__ __forceinline__ void reduce(const KernelArguments& a, u32 op) {
    using Stored = typename Element::Stored;
    using Sum = typename Element::Sum;
    constexpr u32 lanes = Vector<Stored>::lanes;
    const bool is_scatter = a.form == Form::scatter;
    const u64 bytes = a.count * sizeof(Stored);
    const bool is_aligned = (all_bits(a) | (is_scatter ? bytes : 0)) % vector_bytes == 0;

    for_each_tile(a, is_scatter ? a.size : 1, bytes, [&](u64 part, u64 begin, u64 end, const Epochs& epochs) {
        const u64 from = part * bytes;  // in the inputs
        const u32 first = is_scatter ? static_cast<u32>(part) : 0;
        const u32 last = is_scatter ? first + 1 : a.size;
        u64 at = begin;
        if (is_aligned) {
            const u64 whole = (end - begin) / vector_bytes;
            for (u64 base = 0; base < whole; base += static_cast<u64>(vectors) * blockDim.x) {
                Sum sums[vectors][lanes];
                for (u32 rank = 0; rank < a.size; ++rank) {
#pragma unroll
                    for (u32 v = 0; v < vectors; ++v) {
                        const u64 index = base + static_cast<u64>(v) * blockDim.x + threadIdx.x;
                        if (index >= whole) continue;
                        const auto read =
                            load_vector<Stored>(a.in[rank] + from + begin + index * vector_bytes);
#pragma unroll
                        for (u32 lane = 0; lane < lanes; ++lane) {
                            const Sum next = Element::widen(read.lane[lane]);
                            sums[v][lane] = rank == 0 ? next : Element::combine(sums[v][lane], next, op);
                        }
                    }
                }
#pragma unroll
                for (u32 v = 0; v < vectors; ++v) {
                    const u64 index = base + static_cast<u64>(v) * blockDim.x + threadIdx.x;
                    if (index >= whole) continue;
                    Vector<Stored> result;
#pragma unroll
                    for (u32 lane = 0; lane < lanes; ++lane) {
                        result.lane[lane] = Element::narrow(sums[v][lane], op, a.divisor);
                    }
                    for (u32 rank = first; rank < last; ++rank) {
                        if (!epochs.alive[rank]) continue;
                        store_vector(a.out[rank] + begin + index * vector_bytes, result);
                    }
                }
            }
            at = begin + whole * vector_bytes;
        }
        for (at += threadIdx.x * sizeof(Stored); at < end; at += blockDim.x * sizeof(Stored)) {
            Sum sum = Element::widen(load<Stored>(a.in[0] + from + at));
            for (u32 rank = 1; rank < a.size; ++rank) {
                sum = Element::combine(sum, Element::widen(load<Stored>(a.in[rank] + from + at)), op);
            }
            const Stored result = Element::narrow(sum, op, a.divisor);
            for (u32 rank = first; rank < last; ++rank) {
                if (epochs.alive[rank]) store(a.out[rank] + at, result);
            }
        }
    });
}

// --- moves

// Where part `part` of a move comes from, and where it goes to.
struct Move {
    u64 from;
    u64 offset;  // in the outputs
    u32 first;   // the ranks that get it
    u32 last;
    u32 skip;  // which has it already; most_ranks: none
};

__device__ __forceinline__ Move move_of(const KernelArguments& a, u64 part) {
    const u32 p = static_cast<u32>(part);
    switch (a.form) {
        case Form::concatenate:
            return {a.in[p], p * a.count, 0, a.size, most_ranks};
        case Form::broadcast:
            return {a.in[a.root], 0, 0, a.size, a.root};
        case Form::divide:
            return {a.in[a.root] + p * a.count, 0, p, p + 1, most_ranks};
        default: {
            const u32 source = p / a.size;
            const u32 target = p % a.size;
            return {a.in[source] + target * a.count, source * a.count, target, target + 1, most_ranks};
        }
    }
}

template <class Unit>
__device__ __forceinline__ void move_by(const KernelArguments& a, u64 parts) {
    for_each_tile(a, parts, a.count, [&](u64 part, u64 begin, u64 end, const Epochs& epochs) {
        const Move move = move_of(a, part);
        const u64 step = static_cast<u64>(blockDim.x) * sizeof(Unit);
        for (u64 base = begin + threadIdx.x * sizeof(Unit); base < end; base += vectors * step) {
            Unit units[vectors];
#pragma unroll
            for (u32 v = 0; v < vectors; ++v) {
                if (base + v * step < end) units[v] = load<Unit>(move.from + base + v * step);
            }
            for (u32 rank = move.first; rank < move.last; ++rank) {
                if (rank == move.skip || !epochs.alive[rank]) continue;
#pragma unroll
                for (u32 v = 0; v < vectors; ++v) {
                    if (base + v * step < end) {
                        store(a.out[rank] + move.offset + base + v * step, units[v]);
                    }
                }
            }
        }
    });
}

__device__ __forceinline__ void move(const KernelArguments& a) {
    const u64 parts = a.form == Form::broadcast ? 1
                      : a.form == Form::transpose ? static_cast<u64>(a.size) * a.size
                                                  : a.size;
    const u64 alignment = all_bits(a) | a.count;
    if (alignment % sizeof(uint4) == 0) return move_by<uint4>(a, parts);
    if (alignment % sizeof(u64) == 0) return move_by<u64>(a, parts);
    if (alignment % sizeof(u32) == 0) return move_by<u32>(a, parts);
    move_by<u8>(a, parts);
}

}  // namespace collectives::cuda

#if defined(COLLECTIVES_ELEMENT)
extern "C" __global__ void collectives_reduce(const __grid_constant__ collectives::cuda::KernelArguments a) {
    collectives::cuda::reduce<collectives::cuda::COLLECTIVES_ELEMENT>(a, COLLECTIVES_OP);
}
#else
extern "C" __global__ void collectives_move(const __grid_constant__ collectives::cuda::KernelArguments a) {
    collectives::cuda::move(a);
}
#endif
