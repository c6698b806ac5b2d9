#include "base/copy.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/cpu.hpp"
#include "base/page.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace collectives {

#if defined(__x86_64__)

namespace {

constexpr std::size_t string_copy_from = 2048;
constexpr std::size_t line = 64;
constexpr std::size_t prefetched = 1024;  // distance in bytes

struct Quad {
    __m128i a, b, c, d;
};

Quad load_quad(const std::byte* p) {
    const auto* from = reinterpret_cast<const __m128i*>(p);
    return {_mm_loadu_si128(from), _mm_loadu_si128(from + 1), _mm_loadu_si128(from + 2),
            _mm_loadu_si128(from + 3)};
}

// If the destination is less than a step of `rep movsb` after the source, modulo a page (1 to 31 bytes on Zen
// 3, 1 to 15 on Zen 4), each load seems to depend on earlier stores. The copy then has only a fifteenth to a
// thirtieth of its speed (2 to 3 GB/s). A copy backwards from the end has no such dependence.
bool seems_to_overlap(std::uintptr_t dst, std::uintptr_t src) {
    return (dst - src) % page_size - 1 < line - 1 && string_copy_seems_to_overlap();
}
bool seems_to_overlap(const std::byte* dst, const std::byte* src) {
    return seems_to_overlap(reinterpret_cast<std::uintptr_t>(dst), reinterpret_cast<std::uintptr_t>(src));
}

void store_quad(std::byte* p, const Quad& whole) {
    auto* to = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(to, whole.a);
    _mm_storeu_si128(to + 1, whole.b);
    _mm_storeu_si128(to + 2, whole.c);
    _mm_storeu_si128(to + 3, whole.d);
}

void stream_quad(std::byte* p, const Quad& whole) {
    auto* to = reinterpret_cast<__m128i*>(p);
    _mm_stream_si128(to, whole.a);
    _mm_stream_si128(to + 1, whole.b);
    _mm_stream_si128(to + 2, whole.c);
    _mm_stream_si128(to + 3, whole.d);
}

// Writes the byte at `p` back unchanged, so that its cache line counts as written. This is no store in the
// sense of C++: other threads may read the byte, or do the same. It is one instruction, so nothing interrupts
// it between its load and its store.
void write_back(std::byte* p) { asm volatile("orb $0, %0" : "+m"(*p)); }

// If `Source` is not const, a byte of it is written back, too.
template <typename Source>
Quad read_quad(Source* p) {
    const Quad whole = load_quad(p);
    if constexpr (!std::is_const_v<Source>) write_back(p);
    return whole;
}

template <typename Source>
void copy_backwards(std::byte* dst, Source* src, std::size_t n) {
    const std::size_t tail = reinterpret_cast<std::uintptr_t>(dst + n) % line;  // n is more than a line
    n -= tail;
    std::memcpy(dst + n, src + n, tail);
    while (n >= line) {
        n -= line;
        store_quad(dst + n, read_quad(src + n));
    }
    std::memcpy(dst, src, n);
}

// Prefetches, because the processor's own prefetching stops at the end of each page.
void prefetch_after(const std::byte* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p + prefetched), _MM_HINT_T0);
}

// Copies whole lines to a destination that begins at a line; not fenced.
void stream_lines(std::byte* dst, const std::byte* src, std::size_t n) {
    for (std::size_t at = 0; at < n; at += line) {
        prefetch_after(src + at);
        stream_quad(dst + at, load_quad(src + at));
    }
}

// The same, with one store for each line.
__attribute__((target("avx512f"))) void stream_lines_at_once(std::byte* dst, const std::byte* src,
                                                             std::size_t n) {
    for (std::size_t at = 0; at < n; at += line) {
        prefetch_after(src + at);
        _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + at), _mm512_loadu_si512(src + at));
    }
}

// As copy_streaming, but not fenced.
void copy_around(std::byte* dst, const std::byte* src, std::size_t n) {
    const std::size_t head = -reinterpret_cast<std::uintptr_t>(dst) % line;
    if (n < head + line) return copy_bytes(dst, src, n);
    std::memcpy(dst, src, head);
    const std::size_t lines = (n - head) / line * line;
    const auto stream = has(Isa::avx512) ? stream_lines_at_once : stream_lines;
    stream(dst + head, src + head, lines);
    const std::size_t done = head + lines;
    std::memcpy(dst + done, src + done, n - done);
}

bool has_string_copy() {
    static const bool has = has_fast_string_copy();
    return has;
}

}  // namespace

bool copies_slowly(std::uintptr_t dst, std::uintptr_t src) {
    return has_string_copy() && seems_to_overlap(dst, src);
}

void copy_bytes(std::byte* dst, const std::byte* src, std::size_t n) {
    if (dst == src || n == 0) return;
    if (n < string_copy_from || !has_string_copy()) {
        std::memcpy(dst, src, n);
        return;
    }
    if (seems_to_overlap(dst, src)) return copy_backwards(dst, src, n);
    asm volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(n)::"memory");
}

void copy_streaming(std::byte* dst, const std::byte* src, std::size_t n) {
    copy_streaming_on(dst, src, n);
    finish_streaming();
}

void copy_streaming_on(std::byte* dst, const std::byte* src, std::size_t n) {
    if (dst != src) copy_around(dst, src, n);
}

void finish_streaming() { _mm_sfence(); }

void copy_and_own(std::byte* dst, std::byte* src, std::size_t n) {
    if (n < string_copy_from || !hands_lines_over()) return copy_bytes(dst, src, n);
    if (seems_to_overlap(dst, src)) return copy_backwards(dst, src, n);
    std::size_t at = 0;
    for (; n - at >= line; at += line) store_quad(dst + at, read_quad(src + at));
    std::memcpy(dst + at, src + at, n - at);
}

#else

bool copies_slowly(std::uintptr_t, std::uintptr_t) { return false; }

void copy_bytes(std::byte* dst, const std::byte* src, std::size_t n) {
    if (dst != src && n != 0) std::memcpy(dst, src, n);
}

void copy_streaming(std::byte* dst, const std::byte* src, std::size_t n) { copy_bytes(dst, src, n); }

void copy_streaming_on(std::byte* dst, const std::byte* src, std::size_t n) { copy_bytes(dst, src, n); }

void finish_streaming() {}

void copy_and_own(std::byte* dst, std::byte* src, std::size_t n) { copy_bytes(dst, src, n); }

#endif

CopyFn copy_by(Stores stores) { return stores == Stores::streaming ? copy_streaming : copy_bytes; }

}  // namespace collectives
