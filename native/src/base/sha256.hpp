// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104) for the handshake.
//
// Invariant: running time depends on lengths only, never on the content of keys, messages or digests.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace collectives {

using Digest = std::array<std::byte, 32>;

// The hash of a message that arrives in parts.
class Sha256 {
  public:
    Sha256();
    Sha256& update(std::span<const std::byte> data);
    // The digest of all parts; the object cannot be used again.
    Digest finish();

  private:
    void compress(const std::byte* block);

    std::array<std::uint32_t, 8> state_;
    std::array<std::byte, 64> block_;
    std::size_t filled_ = 0;
    std::uint64_t length_ = 0;
};

// The authentication code of a message that arrives in parts.
class HmacSha256 {
  public:
    explicit HmacSha256(std::span<const std::byte> key);
    HmacSha256& update(std::span<const std::byte> data);
    // The code of all parts; the object cannot be used again.
    Digest finish();

  private:
    Sha256 inner_, outer_;
};

Digest sha256(std::span<const std::byte> data);
Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> data);

// Whether both have the same length and content, compared in constant time.
bool equal(std::span<const std::byte> a, std::span<const std::byte> b);

}  // namespace collectives
