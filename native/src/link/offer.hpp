// What a transport says of itself when a link is made, and the part of the handshake that carries it.
//
// Invariant: the handshake knows the size and the version of an offer, never its meaning. A size that cannot
// be is refused before anything of it is received; the transport sees an offer only after the proof that
// covers it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "base/error.hpp"
#include "base/unique_fd.hpp"

namespace collectives {

inline constexpr std::size_t most_offered = 1024;
inline constexpr std::size_t most_offered_descriptors = 2;

// By which a peer can make its end of a link: such as the numbers of queue pairs, or descriptors of memory.
struct Offer {
    std::uint8_t version = 0;      // of the bytes' meaning
    std::vector<std::byte> bytes;  // at most `most_offered`
    std::vector<int> descriptors;  // the transport's own, which must stay open; for local sockets only
    std::shared_ptr<void> object;  // for peers in this process only

    // One whose bytes are those of `value`.
    template <typename T>
    static Offer of(std::uint8_t version, const T& value) {
        static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= most_offered);
        const auto bytes = std::as_bytes(std::span(&value, 1));
        return {version, {bytes.begin(), bytes.end()}, {}, {}};
    }
};

// The same as it has come from a peer that has proved who it is.
struct PeerOffer {
    std::uint8_t version = 0;
    std::vector<std::byte> bytes;
    std::vector<UniqueFd> descriptors;
    std::shared_ptr<void> object;

    // What `Offer::of` was given. Error(transport_unavailable) where it is of another version or size.
    template <typename T>
    T as(std::uint8_t expected) const {
        if (version != expected || bytes.size() != sizeof(T)) {
            throw Error(ErrorKind::transport_unavailable, "a peer made an offer of another version or size");
        }
        T value{};
        std::memcpy(static_cast<void*>(&value), bytes.data(), sizeof(T));
        return value;
    }
};

}  // namespace collectives
