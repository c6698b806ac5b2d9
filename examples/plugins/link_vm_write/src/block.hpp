// What the two ends of a link write into each other's memory.
//
// Invariant: a block is written by its owner's peer alone, but for the first two members. The kernel may copy
// a record byte by byte, so each one carries a checksum: what is half written is not seen at all.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <collectives/link/published_calls.hpp>
#include <cstdint>
#include <optional>

namespace vm_write {

using collectives::Call;

template <typename T>
class Record {
  public:
    static constexpr std::size_t n_words = sizeof(T) / 8;
    using Image = std::array<std::uint64_t, n_words + 1>;  // what is written: the value and its checksum

    static Image image(const T& value) {
        const auto words = std::bit_cast<std::array<std::uint64_t, n_words>>(value);
        Image result{};
        for (std::size_t i = 0; i < n_words; ++i) result[i] = words[i];
        result[n_words] = check(words);
        return result;
    }

    // Nothing where it was never written, or is just being written.
    std::optional<T> load() const {
        const std::uint64_t sum = words_[n_words].load(std::memory_order_acquire);
        std::array<std::uint64_t, n_words> words{};
        for (std::size_t i = 0; i < n_words; ++i) words[i] = words_[i].load(std::memory_order_acquire);
        return check(words) == sum ? std::optional(std::bit_cast<T>(words)) : std::nullopt;
    }

  private:
    static std::uint64_t check(const std::array<std::uint64_t, n_words>& words) {
        std::uint64_t sum = 0x9e3779b97f4a7c15;  // of zeros it is not zero
        for (const std::uint64_t word : words) sum = (std::rotl(sum, 23) ^ word) * 0xd6e8feb86659fd93;
        return sum;
    }

    std::array<std::atomic<std::uint64_t>, n_words + 1> words_{};
};

// The sender's: which message it has begun.
struct Heading {
    std::uint64_t number = 0;  // of the message on this direction of the link, from 1 on
    std::uint64_t length = 0;
    std::uint64_t fingerprint = 0;
    Call call;
};

// The sender's: so many bytes of that message lie in their place.
struct Progress {
    std::uint64_t number = 0;
    std::uint64_t arrived = 0;
};

// The receiver's: where the bytes [from, end) of that message are to be written. Byte x has its place at
// `address` + x % `period`.
struct Landing {
    std::uint64_t number = 0;  // 0: nothing is posted
    std::uint64_t length = 0;
    std::uint64_t fingerprint = 0;
    Call call;
    std::uint64_t address = 0;
    std::uint64_t period = 0;
    std::uint64_t from = 0;
    std::uint64_t end = 0;
    std::uint64_t finished = 0;  // messages that it has received
};

// The last thing that a rank says.
struct Farewell {
    std::uint32_t lost = 0;       // 1 + the rank whose loss is the reason; 0: none
    std::uint32_t disagrees = 0;  // 1: ranks called different things, namely these
    collectives::Disagreement found{};
};

inline constexpr std::uint64_t most_headings = 16;

struct alignas(64) Block {
    std::array<std::uint64_t, 2> cookie{};  // tells the owner's process from every other one
    std::atomic<std::uint64_t> writes{0};   // odd while the owner may be writing to the peer
    std::atomic<std::uint64_t> revoked{0};  // not 0: the owner must not write to the peer any more
    std::atomic<std::uint64_t> armed{0};    // not 0: the peer sleeps, and wants a byte over the socket
    Record<Landing> landing;
    Record<Progress> progress;
    Record<Farewell> farewell;
    std::array<Record<Heading>, most_headings> headings;  // by number, modulo
};

}  // namespace vm_write
