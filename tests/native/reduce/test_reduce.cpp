// Every kernel, in every instruction set that can run here, against the reference: to the last bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <type_traits>

#include "data.hpp"
#include "reduce/reduce.hpp"
#include "reference.hpp"

using namespace collectives;
using reference::Bytes;

namespace {

constexpr std::byte guard{0xa5};
constexpr std::size_t margin = 64;

std::vector<Isa> isas() {
    std::vector<Isa> found;
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512})
        if (has(isa)) found.push_back(isa);
    return found;
}

template <class F>
void for_every_kernel(F f) {
    for (unsigned d = 0; is_dtype(d) && !is_blocks(static_cast<DType>(d)); ++d)  // see test_blocks.cpp
        for (unsigned o = 0; is_op(o); ++o)
            if (supports(static_cast<DType>(d), static_cast<Op>(o)))
                f(static_cast<DType>(d), static_cast<Op>(o));
}

// Where the arrays of one call lie: bytes after a 64-byte boundary, and which source the output is, if any.
struct Layout {
    std::size_t dst_offset;
    std::size_t source_offset;
    enum { apart, first, last } output;
};

// 64-byte aligned memory with room for an offset and for guards on both sides of what is used.
class Arena {
  public:
    explicit Arena(std::size_t bytes) : memory_(bytes + 6 * margin) {}

    std::byte* at(std::size_t offset) {
        const auto address = reinterpret_cast<std::uintptr_t>(memory_.data()) + margin;
        return memory_.data() + margin + (-address % 64) + offset;
    }

  private:
    Bytes memory_;
};

const Bytes guards(margin, guard);

void set_guards(std::byte* begin, std::size_t n) {
    std::memcpy(begin - margin, guards.data(), margin);
    std::memcpy(begin + n, guards.data(), margin);
}

bool guards_intact(const std::byte* begin, std::size_t n) {
    return std::memcmp(begin - margin, guards.data(), margin) == 0 &&
           std::memcmp(begin + n, guards.data(), margin) == 0;
}

// Runs a kernel on a layout; says what is wrong, or nothing.
std::string fault(ReduceFn kernel, DType dtype, const std::vector<Bytes>& sources, const Bytes& expected,
                  std::size_t count, double scale, const Layout& layout, std::vector<Arena>& arenas) {
    const std::size_t bytes = count * size_of(dtype);
    std::vector<const std::byte*> pointers;
    for (std::size_t s = 0; s < sources.size(); ++s) {
        std::byte* const p = arenas[s + 1].at(layout.source_offset + s % 3 * (layout.source_offset % 64));
        if (bytes != 0) std::memcpy(p, sources[s].data(), bytes);
        pointers.push_back(p);
    }
    std::byte* const dst = arenas[0].at(layout.dst_offset);
    set_guards(dst, bytes);
    std::memset(dst, 0x5a, bytes);
    if (layout.output != Layout::apart) {
        const std::size_t which = layout.output == Layout::first ? 0 : sources.size() - 1;
        if (bytes != 0) std::memcpy(dst, sources[which].data(), bytes);
        pointers[which] = dst;
    }
    kernel(dst, pointers.data(), pointers.size(), count, scale);
    std::string what;
    if (bytes != 0 && std::memcmp(dst, expected.data(), bytes) != 0)
        what = "wrong from byte " +
               std::to_string(std::mismatch(dst, dst + bytes, expected.begin()).first - dst);
    else if (!guards_intact(dst, bytes))
        what = "wrote outside the output";
    else
        return {};
    return what + ", " + std::to_string(count) + " elements, output at " + std::to_string(layout.dst_offset) +
           ", sources at " + std::to_string(layout.source_offset) + ", output is " +
           (layout.output == Layout::apart ? "apart" : "a source");
}

}  // namespace

TEST_CASE("a kernel exists exactly where the operation has a meaning") {
    for (const Isa isa : isas())
        for (unsigned d = 0; is_dtype(d); ++d)
            for (unsigned o = 0; is_op(o); ++o)
                for (const Stores stores : {Stores::cached, Stores::streaming}) {
                    const auto dtype = static_cast<DType>(d);
                    const auto op = static_cast<Op>(o);
                    CAPTURE(name(dtype));
                    CAPTURE(name(op));
                    CHECK((reduce_kernel(dtype, op, stores, isa) != nullptr) == supports(dtype, op));
                }
}

TEST_CASE("every type, operation, number of sources, length and layout, on every instruction set") {
    constexpr std::array<std::size_t, 17> counts{0,  1,  2,  3,  7,   15,  16,  17,  31,
                                                 33, 63, 64, 65, 127, 255, 777, 1031};
    constexpr std::size_t longest = counts.back();
    constexpr std::size_t most_sources = testing::fewer(9);
    constexpr std::array<Layout, 5> layouts{{{0, 0, Layout::apart},
                                             {16, 48, Layout::apart},
                                             {8, 4, Layout::first},
                                             {1, 3, Layout::last},
                                             {63, 1, Layout::apart}}};
    std::vector<Arena> arenas(10, Arena(longest * 16));
    std::mt19937_64 random(20240229);
    for_every_kernel([&](DType dtype, Op op) {
        for (std::size_t n = 1; n <= most_sources; ++n) {
            std::vector<Bytes> sources;
            for (std::size_t s = 0; s < n; ++s) sources.push_back(reference::data(dtype, longest, random));
            const Bytes expected = reference::reduce(dtype, op, sources, longest, static_cast<int>(n));
            for (const Isa isa : isas())
                for (const Stores stores : {Stores::cached, Stores::streaming}) {
                    const ReduceFn kernel = reduce_kernel(dtype, op, stores, isa);
                    CAPTURE(name(dtype));
                    CAPTURE(name(op));
                    CAPTURE(name(isa));
                    CAPTURE(n);
                    CAPTURE(stores == Stores::streaming);
                    std::string faults;
                    for (std::size_t i = 0; i < counts.size(); ++i)
                        for (std::size_t l = i % 2; l < layouts.size(); l += 2)
                            faults += fault(kernel, dtype, sources, expected, counts[i],
                                            1.0 / static_cast<double>(n), layouts[l], arenas);
                    REQUIRE(faults == "");
                }
        }
    });
}

TEST_CASE("every byte offset of the output, around the size from which it is aligned first") {
    constexpr std::size_t bytes = 1200;
    std::vector<Arena> arenas(4, Arena(bytes + 64));
    std::mt19937_64 random(7);
    for (const DType dtype :
         {DType::float16, DType::float32, DType::float64, DType::uint8, DType::complex128}) {
        const std::size_t count = bytes / size_of(dtype);
        const std::vector<Bytes> sources{reference::data(dtype, count, random),
                                         reference::data(dtype, count, random)};
        const Bytes expected = reference::reduce(dtype, Op::sum, sources, count, 1);
        for (const Isa isa : isas())
            for (const Stores stores : {Stores::cached, Stores::streaming})
                for (std::size_t offset = 0; offset < 64; ++offset)
                    for (std::size_t less = 0; less < 200; less += 39) {
                        CAPTURE(name(dtype));
                        CAPTURE(name(isa));
                        REQUIRE(fault(reduce_kernel(dtype, Op::sum, stores, isa), dtype, sources, expected,
                                      count - less / size_of(dtype), 1.0, {offset, 0, Layout::apart},
                                      arenas) == "");
                    }
    }
}

TEST_CASE("sums and averages to several places at once, the first of which may be a source") {
    constexpr std::array<std::size_t, 8> counts{0, 3, 65, 255, 256, 777, 1031, 4099};
    constexpr std::array<std::size_t, 6> offsets{0, 16, 8, 4, 1, 63};
    constexpr std::size_t longest = counts.back();
    std::vector<Arena> outputs(3, Arena(longest * 16));
    std::vector<Arena> inputs(4, Arena(longest * 16));
    std::mt19937_64 random(11);
    std::size_t kernels = 0;
    for_every_kernel([&](DType dtype, Op op) {
        for (const Isa isa : isas()) {
            const SpreadFn kernel = spread_kernel(dtype, op, isa);
            if (kernel == nullptr) continue;
            ++kernels;
            for (std::size_t n = 2; n <= inputs.size(); ++n) {
                std::vector<Bytes> sources;
                for (std::size_t s = 0; s < n; ++s)
                    sources.push_back(reference::data(dtype, longest, random));
                const Bytes expected = reference::reduce(dtype, op, sources, longest, static_cast<int>(n));
                for (std::size_t i = 0; i < counts.size() * offsets.size(); ++i) {
                    const std::size_t bytes = counts[i % counts.size()] * size_of(dtype);
                    const std::size_t offset = offsets[i % offsets.size()];
                    const std::size_t places = 1 + i % outputs.size();
                    const bool in_place = i % 2 == 1;
                    CAPTURE(name(dtype));
                    CAPTURE(name(op));
                    CAPTURE(name(isa));
                    CAPTURE(n);
                    CAPTURE(bytes);
                    CAPTURE(offset);
                    CAPTURE(places);
                    std::vector<const std::byte*> pointers;
                    for (std::size_t s = 0; s < n; ++s) {
                        std::byte* const p = inputs[s].at(3 * s);
                        if (bytes != 0) std::memcpy(p, sources[s].data(), bytes);
                        pointers.push_back(p);
                    }
                    std::vector<std::byte*> dsts;
                    for (std::size_t d = 0; d < places; ++d) {
                        dsts.push_back(outputs[d].at(offset));
                        set_guards(dsts.back(), bytes);
                    }
                    if (in_place) {
                        if (bytes != 0) std::memcpy(dsts[0], sources[n - 1].data(), bytes);
                        pointers[n - 1] = dsts[0];
                    }
                    kernel(dsts.data(), places, pointers.data(), n, counts[i % counts.size()],
                           1.0 / static_cast<double>(n));
                    for (const std::byte* dst : dsts) {
                        REQUIRE((bytes == 0 || std::memcmp(dst, expected.data(), bytes) == 0));
                        REQUIRE(guards_intact(dst, bytes));
                    }
                }
            }
        }
    });
    CHECK(kernels == 12 * isas().size());
}

TEST_CASE("16-bit floats: every value converts exactly") {
    constexpr std::size_t all = 65536;
    const auto check_all = [&](DType dtype, const reference::Small& format) {
        // -0 is the neutral element of addition, so the sum is the value, converted there and back.
        std::vector<std::uint16_t> values(all), zeros(all, 0x8000), sums(all);
        for (std::size_t i = 0; i < all; ++i) values[i] = static_cast<std::uint16_t>(i);
        const std::array<const std::byte*, 2> sources{reinterpret_cast<const std::byte*>(values.data()),
                                                      reinterpret_cast<const std::byte*>(zeros.data())};
        for (const Isa isa : isas()) {
            reduce_kernel(dtype, Op::sum, Stores::cached, isa)(reinterpret_cast<std::byte*>(sums.data()),
                                                               sources.data(), 2, all, 1.0);
            std::vector<std::uint16_t> expected = values;
            for (std::uint16_t& value : expected)
                if ((value & 0x7fffu) > format.infinity())
                    value = static_cast<std::uint16_t>(format.quiet_nan());
            CAPTURE(name(isa));
            REQUIRE((sums == expected));
        }
    };
    check_all(DType::float16, reference::half);
    check_all(DType::bfloat16, reference::brain);
}

TEST_CASE("16-bit floats: every value times and plus others rounds as in double arithmetic") {
    constexpr std::size_t all = 65536;
    std::mt19937_64 random(16);
    const auto check_all = [&](DType dtype, const reference::Small& format) {
        Bytes values(2 * all), others(2 * all);
        for (std::size_t i = 0; i < all; ++i) reference::set(values, i, static_cast<std::uint16_t>(i));
        // Around 1, the smallest numbers, the largest, and anything.
        std::vector<std::uint16_t> factors{format.encode(1.0 + std::ldexp(1.0, -format.mantissa_bits)),
                                           format.encode(0.5),
                                           format.encode(-1.5),
                                           1,
                                           0x8003,
                                           static_cast<std::uint16_t>(format.infinity() - 1)};
        for (int i = 0; i < testing::fewer(10); ++i) factors.push_back(static_cast<std::uint16_t>(random()));
        for (const std::uint16_t factor : factors)
            for (const Op op : {Op::sum, Op::prod}) {
                for (std::size_t i = 0; i < all; ++i) reference::set(others, i, factor);
                const Bytes expected = reference::reduce(dtype, op, {values, others}, all, 1);
                for (const Isa isa : isas()) {
                    Bytes result(2 * all);
                    const std::array<const std::byte*, 2> sources{values.data(), others.data()};
                    reduce_kernel(dtype, op, Stores::cached, isa)(result.data(), sources.data(), 2, all, 1.0);
                    CAPTURE(name(dtype));
                    CAPTURE(name(op));
                    CAPTURE(name(isa));
                    CAPTURE(factor);
                    REQUIRE((result == expected));
                }
            }
    };
    check_all(DType::float16, reference::half);
    check_all(DType::bfloat16, reference::brain);
}

TEST_CASE("16-bit floats are rounded once, however many sources there are") {
    // In bfloat16 itself 1 + 2^-9 would be 1 each time; in float32 eight of them add up.
    for (const Isa isa : isas()) {
        std::vector<std::uint16_t> one(5, reference::brain.encode(1.0));
        std::vector<std::uint16_t> little(5, reference::brain.encode(std::ldexp(1.0, -9)));
        std::vector<const std::byte*> sources(9, reinterpret_cast<const std::byte*>(little.data()));
        sources[0] = reinterpret_cast<const std::byte*>(one.data());
        std::vector<std::uint16_t> sum(5);
        reduce_kernel(DType::bfloat16, Op::sum, Stores::cached, isa)(reinterpret_cast<std::byte*>(sum.data()),
                                                                     sources.data(), 9, 5, 1.0);
        CHECK(reference::brain.decode(sum[4]) == 1.0 + std::ldexp(1.0, -6));
    }
}

TEST_CASE("the average of equal values is that value") {
    // 49 * (1 / 49.0) is less than 1.
    for (const Isa isa : isas())
        for (const std::size_t n : {1, 2, 3, 5, 7, 49, 100}) {
            const std::vector<double> ones(9, 1.0);
            std::vector<double> average(9);
            const std::vector<const std::byte*> sources(n, reinterpret_cast<const std::byte*>(ones.data()));
            const auto kernel = reduce_kernel(DType::float64, Op::avg, Stores::cached, isa);
            kernel(reinterpret_cast<std::byte*>(average.data()), sources.data(), n, 9,
                   1.0 / static_cast<double>(n));
            CAPTURE(n);
            CHECK(average == ones);
        }
}

namespace {

// Checks values / n, rounded towards zero, in every instruction set.
template <class T>
void check_quotients(DType dtype, const std::vector<T>& values, std::int64_t n) {
    Bytes source(values.size() * sizeof(T)), expected(source.size());
    std::memcpy(source.data(), values.data(), source.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
        using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
        reference::set(expected, i, static_cast<T>(static_cast<Wide>(values[i]) / static_cast<Wide>(n)));
    }
    const std::byte* const sources[] = {source.data()};
    for (const Isa isa : isas()) {
        Bytes result(source.size());
        reduce_kernel(dtype, Op::avg, Stores::cached, isa)(result.data(), sources, 1, values.size(),
                                                           1.0 / static_cast<double>(n));
        CAPTURE(name(dtype));
        CAPTURE(name(isa));
        CAPTURE(n);
        REQUIRE((result == expected));
    }
}

// Numbers on both sides of multiples of n, the largest ones and the smallest among them, and random ones.
template <class T>
void check_large_quotients(DType dtype, std::mt19937_64& random) {
    using U = std::make_unsigned_t<T>;
    constexpr auto highest = std::numeric_limits<T>::max();
    std::vector<std::int64_t> divisors{1, 2, 3, 5, 7, 10, 641, 65535, 65536, 65537, (1LL << 31) - 1};
    for (int i = 0; i < testing::fewer(100); ++i)
        divisors.push_back(1 + static_cast<std::int64_t>(random() >> (33 + random() % 30)));
    for (const std::int64_t n : divisors) {
        std::vector<T> values{0, 1, highest, std::numeric_limits<T>::min()};
        for (int i = 0; i < 300; ++i) {
            const U any = static_cast<U>(i % 3 == 0 ? U{0} + highest - i : random() >> (random() % 64));
            const auto multiple = static_cast<U>(any - any % static_cast<U>(n));
            for (const int beside : {-1, 0, 1}) {
                const auto x = static_cast<U>(multiple + static_cast<U>(beside));
                values.push_back(static_cast<T>(x));
                values.push_back(static_cast<T>(U{0} - x));
            }
            values.push_back(static_cast<T>(any));
        }
        check_quotients(dtype, values, n);
    }
}

}  // namespace

TEST_CASE("the average of integers is exact: all 8-bit and 16-bit numbers, and more ranks than fit these") {
    const auto check_all = [&]<class T>(DType dtype, T, const std::vector<std::int64_t>& divisors) {
        std::vector<T> values(std::size_t{1} << (8 * sizeof(T)));
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(i);
        for (const std::int64_t n : divisors) check_quotients(dtype, values, n);
    };
    std::vector<std::int64_t> divisors{65535, 65536, 65537, 100000, (1LL << 31) - 1};
    for (std::int64_t n = 1; n <= 300; ++n) divisors.push_back(n);
    check_all(DType::int8, std::int8_t{}, divisors);
    check_all(DType::uint8, std::uint8_t{}, divisors);
    divisors = {1, 2, 3, 7, 255, 256, 257, 32767, 32768, 32769, 65535, 65536, 65537, (1LL << 31) - 1};
    std::mt19937_64 random(16);
    for (int i = 0; i < testing::fewer(100); ++i) divisors.push_back(1 + static_cast<int>(random() % 65536));
    check_all(DType::int16, std::int16_t{}, divisors);
    check_all(DType::uint16, std::uint16_t{}, divisors);
}

TEST_CASE("the average of integers is exact: 32-bit and 64-bit numbers") {
    std::mt19937_64 random(64);
    check_large_quotients<std::int32_t>(DType::int32, random);
    check_large_quotients<std::uint32_t>(DType::uint32, random);
    check_large_quotients<std::int64_t>(DType::int64, random);
    check_large_quotients<std::uint64_t>(DType::uint64, random);
}

TEST_CASE("a scale that is no reciprocal of an integer multiplies") {
    for (const Isa isa : isas()) {
        std::vector<float> value(9, 3.0f), scaled(9);
        const std::byte* source = reinterpret_cast<const std::byte*>(value.data());
        const auto kernel = reduce_kernel(DType::float32, Op::avg, Stores::cached, isa);
        for (const double scale : {0.7, 2.0, 1e-30, -0.25}) {
            kernel(reinterpret_cast<std::byte*>(scaled.data()), &source, 1, 9, scale);
            CHECK(scaled[8] == 3.0f * static_cast<float>(scale));
        }
    }
}
