#include "base/sha256.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace collectives {
namespace {

constexpr std::array<std::uint32_t, 64> round_constants{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

constexpr std::array<std::uint32_t, 8> initial_state{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

constexpr std::size_t block_size = 64;

std::uint32_t load_big_endian(const std::byte* p) {
    return std::to_integer<std::uint32_t>(p[0]) << 24 | std::to_integer<std::uint32_t>(p[1]) << 16 |
           std::to_integer<std::uint32_t>(p[2]) << 8 | std::to_integer<std::uint32_t>(p[3]);
}

void store_big_endian(std::byte* p, std::uint32_t x) {
    for (int i = 0; i < 4; ++i) p[i] = static_cast<std::byte>(x >> (24 - 8 * i));
}

}  // namespace

Sha256::Sha256() : state_(initial_state), block_{} {}

Sha256& Sha256::update(std::span<const std::byte> data) {
    length_ += data.size();
    while (!data.empty()) {
        if (filled_ == 0 && data.size() >= block_size) {
            compress(data.data());
            data = data.subspan(block_size);
            continue;
        }
        const std::size_t n = std::min(data.size(), block_size - filled_);
        std::memcpy(block_.data() + filled_, data.data(), n);
        filled_ += n;
        data = data.subspan(n);
        if (filled_ == block_size) {
            compress(block_.data());
            filled_ = 0;
        }
    }
    return *this;
}

Digest Sha256::finish() {
    constexpr std::size_t length_at = block_size - 8;
    const std::uint64_t bits = length_ * 8;
    block_[filled_++] = std::byte{0x80};
    if (filled_ > length_at) {
        std::fill(block_.begin() + filled_, block_.end(), std::byte{0});
        compress(block_.data());
        filled_ = 0;
    }
    std::fill(block_.begin() + filled_, block_.begin() + length_at, std::byte{0});
    store_big_endian(block_.data() + length_at, static_cast<std::uint32_t>(bits >> 32));
    store_big_endian(block_.data() + length_at + 4, static_cast<std::uint32_t>(bits));
    compress(block_.data());
    Digest digest;
    for (std::size_t i = 0; i < state_.size(); ++i) store_big_endian(digest.data() + 4 * i, state_[i]);
    return digest;
}

void Sha256::compress(const std::byte* block) {
    std::array<std::uint32_t, 64> w;
    for (std::size_t t = 0; t < 16; ++t) w[t] = load_big_endian(block + 4 * t);
    for (std::size_t t = 16; t < 64; ++t) {
        const std::uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ w[t - 15] >> 3;
        const std::uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = s1 + w[t - 7] + s0 + w[t - 16];
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (std::size_t t = 0; t < 64; ++t) {
        const std::uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
        const std::uint32_t choice = (e & f) ^ (~e & g);
        const std::uint32_t t1 = h + sum1 + choice + round_constants[t] + w[t];
        const std::uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
        const std::uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
        h = g;
        g = f;
        f = e;
        e = d + t1;
        d = c;
        c = b;
        b = a;
        a = t1 + sum0 + majority;
    }
    const std::array<std::uint32_t, 8> change{a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < state_.size(); ++i) state_[i] += change[i];
}

HmacSha256::HmacSha256(std::span<const std::byte> key) {
    std::array<std::byte, block_size> padded{};
    if (key.size() > block_size) {
        const Digest hashed = sha256(key);
        std::copy(hashed.begin(), hashed.end(), padded.begin());
    } else {
        std::copy(key.begin(), key.end(), padded.begin());
    }
    for (std::byte& b : padded) b ^= std::byte{0x36};
    inner_.update(padded);
    for (std::byte& b : padded) b ^= std::byte{0x36} ^ std::byte{0x5c};
    outer_.update(padded);
}

HmacSha256& HmacSha256::update(std::span<const std::byte> data) {
    inner_.update(data);
    return *this;
}

Digest HmacSha256::finish() { return outer_.update(inner_.finish()).finish(); }

Digest sha256(std::span<const std::byte> data) { return Sha256().update(data).finish(); }

Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> data) {
    return HmacSha256(key).update(data).finish();
}

bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
    if (a.size() != b.size()) return false;
    std::byte difference{0};
    for (std::size_t i = 0; i < a.size(); ++i) {
        difference |= a[i] ^ b[i];
        // Keeps the compiler from ending the loop after the first difference.
        asm volatile("" : "+r"(difference));
    }
    return difference == std::byte{0};
}

}  // namespace collectives
