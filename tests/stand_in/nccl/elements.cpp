// Reductions of the stand-in for NCCL: plain loops, and as NCCL has them, an average that wraps.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "comm.hpp"

namespace stand_in {

namespace {

float from_bfloat(std::uint16_t bits) {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}
std::uint16_t to_bfloat(float value) {
    std::uint32_t wide;
    std::memcpy(&wide, &value, 4);
    wide += 0x7fff + ((wide >> 16) & 1);
    return static_cast<std::uint16_t>(wide >> 16);
}

template <typename T>
T apply(T a, T b, int op) {
    switch (op) {
        case 1:
            return static_cast<T>(a * b);
        case 2:
            return std::max(a, b);
        case 3:
            return std::min(a, b);
        default:
            return static_cast<T>(a + b);
    }
}

template <typename T>
void reduce(const std::vector<const char*>& from, char* to, std::size_t bytes, int op) {
    for (std::size_t i = 0; i < bytes / sizeof(T); ++i) {
        const auto at = [&](std::size_t r) {
            T value;
            std::memcpy(&value, from[r] + i * sizeof(T), sizeof(T));
            return value;
        };
        T sum = at(0);
        for (std::size_t r = 1; r < from.size(); ++r) sum = apply(sum, at(r), op);
        if (op == 4) sum = static_cast<T>(sum / static_cast<T>(from.size()));
        std::memcpy(to + i * sizeof(T), &sum, sizeof(T));
    }
}

void reduce_bfloat(const std::vector<const char*>& from, char* to, std::size_t bytes, int op) {
    for (std::size_t i = 0; i < bytes / 2; ++i) {
        const auto at = [&](std::size_t r) {
            std::uint16_t bits;
            std::memcpy(&bits, from[r] + i * 2, 2);
            return from_bfloat(bits);
        };
        float sum = at(0);
        for (std::size_t r = 1; r < from.size(); ++r) sum = apply(sum, at(r), op);
        if (op == 4) sum /= static_cast<float>(from.size());
        const std::uint16_t bits = to_bfloat(sum);
        std::memcpy(to + i * 2, &bits, 2);
    }
}

// 8 bits with `fraction` bits of fraction, and with infinities or without.
float from_narrow(std::uint8_t bits, int fraction, bool has_infinity) {
    const int exponent_bits = 7 - fraction;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (bits & 0x7f) >> fraction;
    const int rest = bits & ((1 << fraction) - 1);
    const float sign = (bits & 0x80) != 0 ? -1.0F : 1.0F;
    const int all = (1 << exponent_bits) - 1;
    if (exponent == all && (has_infinity || rest == (1 << fraction) - 1)) {
        return has_infinity && rest == 0 ? sign * INFINITY : NAN;
    }
    const float value = static_cast<float>(rest) / static_cast<float>(1 << fraction);
    return exponent == 0 ? sign * std::ldexp(value, 1 - bias)
                         : sign * std::ldexp(1.0F + value, exponent - bias);
}

// The nearest one; slow.
std::uint8_t to_narrow(float value, int fraction, bool has_infinity) {
    int best = 0x7f;
    float nearest = INFINITY;
    for (int bits = 0; bits < 256; ++bits) {
        const float distance =
            std::fabs(from_narrow(static_cast<std::uint8_t>(bits), fraction, has_infinity) - value);
        if (distance < nearest) {
            nearest = distance;
            best = bits;
        }
    }
    return static_cast<std::uint8_t>(best);
}

void reduce_narrow(const std::vector<const char*>& from, char* to, std::size_t bytes, int op, int fraction) {
    const bool has_infinity = fraction == 2;
    for (std::size_t i = 0; i < bytes; ++i) {
        const auto at = [&](std::size_t r) {
            return from_narrow(static_cast<std::uint8_t>(from[r][i]), fraction, has_infinity);
        };
        float sum = at(0);
        for (std::size_t r = 1; r < from.size(); ++r) sum = apply(sum, at(r), op);
        if (op == 4) sum /= static_cast<float>(from.size());
        to[i] = static_cast<char>(to_narrow(sum, fraction, has_infinity));
    }
}

}  // namespace

std::size_t size_of(int type) {
    constexpr std::size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type < 0 || type > 11 ? 0 : sizes[type];
}

void reduce_type(int type, const std::vector<const char*>& from, char* to, std::size_t bytes, int op) {
    switch (type) {
        case 0:
            return reduce<std::int8_t>(from, to, bytes, op);
        case 1:
            return reduce<std::uint8_t>(from, to, bytes, op);
        case 2:
            return reduce<std::int32_t>(from, to, bytes, op);
        case 3:
            return reduce<std::uint32_t>(from, to, bytes, op);
        case 4:
            return reduce<std::int64_t>(from, to, bytes, op);
        case 5:
            return reduce<std::uint64_t>(from, to, bytes, op);
        case 7:
            return reduce<float>(from, to, bytes, op);
        case 8:
            return reduce<double>(from, to, bytes, op);
        case 10:
            return reduce_narrow(from, to, bytes, op, 3);
        case 11:
            return reduce_narrow(from, to, bytes, op, 2);
        default:
            return reduce_bfloat(from, to, bytes, op);
    }
}

}  // namespace stand_in
