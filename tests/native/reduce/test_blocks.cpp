// Encoding, decoding and reduction of blocks: each number by arithmetic in double, and all instruction sets
// against each other to the last bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "data.hpp"
#include "reduce/encoding.hpp"
#include "reduce/reduce.hpp"

using namespace collectives;

namespace {

constexpr std::array encoded{DType::float16, DType::bfloat16, DType::int8_blocks, DType::float8_blocks};
constexpr std::array blocks{DType::int8_blocks, DType::float8_blocks};

std::vector<Isa> instruction_sets() {
    std::vector<Isa> found;
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512})
        if (has(isa)) found.push_back(isa);
    return found;
}

// Numbers of all magnitudes, zeros, and now and then one that is not finite.
std::vector<float> numbers(std::size_t n, std::mt19937_64& random, bool finite) {
    std::normal_distribution<float> normal;
    std::vector<float> found(n);
    float size = 1;
    for (std::size_t i = 0; i < n; ++i) {
        if (i % 256 == 0) size = std::ldexp(1.0f, static_cast<int>(random() % 250) - 130);
        found[i] = i % 7 == 3 ? 0 : normal(random) * size;
        if (i % 5 == 0) found[i] *= 1e-3f;
        if (!finite && random() % 1500 == 0) {
            found[i] = random() % 2 == 0 ? std::numeric_limits<float>::quiet_NaN()
                                         : -std::numeric_limits<float>::infinity();
        }
    }
    return found;
}

std::vector<std::byte> encode(DType dtype, Isa isa, const std::vector<float>& x, float factor) {
    const std::size_t n = encoded_elements(dtype, x.size()) * size_of(dtype);
    std::vector<std::byte> found(n + 1, std::byte{0x5a});
    encoder(dtype, isa)(found.data(), x.data(), x.size(), factor);
    CHECK(found.back() == std::byte{0x5a});
    found.pop_back();
    return found;
}

std::vector<float> decode(DType dtype, Isa isa, const std::vector<std::byte>& from, std::size_t n,
                          float factor) {
    std::vector<float> found(n + 1, 77.0f);
    decoder(dtype, isa)(found.data(), from.data(), n, factor);
    CHECK(found.back() == 77.0f);
    found.pop_back();
    return found;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace

TEST_CASE("there is an encoder for each encoded type and no other") {
    for (unsigned d = 0; is_dtype(d); ++d) {
        const auto dtype = static_cast<DType>(d);
        const bool wanted = std::find(encoded.begin(), encoded.end(), dtype) != encoded.end();
        CHECK((encoder(dtype) != nullptr) == wanted);
        CHECK((decoder(dtype) != nullptr) == wanted);
    }
}

TEST_CASE("all instruction sets encode, decode and reduce to the same bits") {
    std::mt19937_64 random(7);
    for (const DType dtype : encoded) {
        CAPTURE(name(dtype));
        for (const std::size_t n : {0, 1, 15, 255, 256, 257, 1000, 4099}) {
            const auto x = numbers(n, random, false);
            const auto y = numbers(n, random, false);
            for (const float factor : {1.0f, 0.25f, 1.0f / 3}) {
                const auto bytes = encode(dtype, Isa::baseline, x, factor);
                const auto others = encode(dtype, Isa::baseline, y, 1);
                const auto back = decode(dtype, Isa::baseline, bytes, n, factor);
                for (const Isa isa : instruction_sets()) {
                    CAPTURE(name(isa));
                    CHECK(encode(dtype, isa, x, factor) == bytes);
                    CHECK(same(decode(dtype, isa, bytes, n, factor), back));
                    if (!is_blocks(dtype)) continue;
                    for (const Op op : {Op::sum, Op::avg}) {
                        for (const std::size_t operands : {1, 2, 3}) {
                            const std::byte* const sources[] = {bytes.data(), others.data(), bytes.data()};
                            const std::size_t count = encoded_elements(dtype, n);
                            const double scale = op == Op::avg ? 1.0 / static_cast<double>(operands) : 1.0;
                            std::vector<std::byte> first(bytes.size()), second(bytes.size());
                            reduce_kernel(dtype, op, Stores::cached, Isa::baseline)(first.data(), sources,
                                                                                    operands, count, scale);
                            reduce_kernel(dtype, op, Stores::streaming, isa)(second.data(), sources, operands,
                                                                             count, scale);
                            CHECK(first == second);
                            std::vector<std::byte> place = bytes;  // over an operand
                            const std::byte* const here[] = {place.data(), others.data(), bytes.data()};
                            reduce_kernel(dtype, op, Stores::cached, isa)(place.data(), here, operands, count,
                                                                          scale);
                            CHECK(first == place);
                        }
                    }
                }
            }
        }
    }
}

TEST_CASE("a block's numbers are wrong by at most half a step") {
    std::mt19937_64 random(11);
    for (const DType dtype : blocks) {
        CAPTURE(name(dtype));
        const auto x = numbers(64 * 256, random, true);
        const auto back = decode(dtype, Isa::baseline, encode(dtype, Isa::baseline, x, 1), x.size(), 1);
        for (std::size_t b = 0; b < x.size(); b += 256) {
            double most = 0;
            for (std::size_t i = b; i < b + 256; ++i) most = std::max(most, std::fabs(double{x[i]}));
            for (std::size_t i = b; i < b + 256; ++i) {
                const double wrong = std::fabs(double{x[i]} - double{back[i]});
                const double scale = most / 448;
                const double step = dtype == DType::int8_blocks
                                        ? most / 127
                                        : std::max(std::fabs(double{x[i]}) / 8, scale * 0x1p-9);
                CHECK(wrong <= (most < 0x1p-118 ? most : step / 2 * (1 + 1e-6)));
            }
        }
    }
}

TEST_CASE("the sum of blocks is the rounded sum of their numbers") {
    std::mt19937_64 random(13);
    for (const DType dtype : blocks) {
        const auto x = encode(dtype, Isa::baseline, numbers(1000, random, true), 1);
        const auto y = encode(dtype, Isa::baseline, numbers(1000, random, true), 1);
        auto sum = decode(dtype, Isa::baseline, x, 1000, 1);
        const auto other = decode(dtype, Isa::baseline, y, 1000, 1);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
        const std::byte* const sources[] = {x.data(), y.data()};
        std::vector<std::byte> found(x.size());
        reduce_kernel(dtype, Op::sum)(found.data(), sources, 2, 4, 1.0);
        CHECK(found == encode(dtype, Isa::baseline, sum, 1));
    }
}

TEST_CASE("not finite, tiny and large numbers") {
    for (const DType dtype : blocks) {
        std::vector<float> x(512, 1.0f);
        x[5] = std::numeric_limits<float>::infinity();
        auto back = decode(dtype, Isa::baseline, encode(dtype, Isa::baseline, x, 1), x.size(), 1);
        for (std::size_t i = 0; i < 256; ++i) CHECK(std::isnan(back[i]));
        for (std::size_t i = 256; i < 512; ++i) CHECK(back[i] == 1.0f);
        x.assign(256, 0x1p-119f);
        back = decode(dtype, Isa::baseline, encode(dtype, Isa::baseline, x, 1), x.size(), 1);
        for (const float number : back) CHECK(number == 0.0f);
        // A sum that is too large for float32 is not finite either.
        x.assign(256, std::numeric_limits<float>::max() / 1.5f);
        const auto half = encode(dtype, Isa::baseline, x, 1);
        const std::byte* const sources[] = {half.data(), half.data()};
        std::vector<std::byte> sum(half.size());
        reduce_kernel(dtype, Op::sum)(sum.data(), sources, 2, 1, 1.0);
        back = decode(dtype, Isa::baseline, sum, 256, 1);
        for (const float number : back) CHECK(std::isnan(number));
    }
}
