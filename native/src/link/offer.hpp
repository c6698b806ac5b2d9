// An offer: what a transport tells the peer's transport when a link is made, as a part of the handshake.
//
// Invariant: the handshake knows the size and the version of an offer, never its meaning. An invalid size is
// refused before the offer is received; the transport sees an offer only after its proof has been checked.
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

// What a peer needs to make its end of a link, such as numbers of queue pairs, or descriptors of memory.
struct Offer {
    std::uint8_t version = 0;      // of the format of `bytes`
    std::vector<std::byte> bytes;  // at most `most_offered`
    std::vector<int> descriptors;  // the transport's own, which must stay open; for local sockets only
    std::shared_ptr<void> object;  // for peers in this process only

    // An offer whose bytes are those of `value`.
    template <typename T>
    static Offer of(std::uint8_t version, const T& value) {
        static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= most_offered);
        const auto bytes = std::as_bytes(std::span(&value, 1));
        return {version, {bytes.begin(), bytes.end()}, {}, {}};
    }
};

// An offer from a peer that has proved its identity.
struct PeerOffer {
    std::uint8_t version = 0;
    std::vector<std::byte> bytes;
    std::vector<UniqueFd> descriptors;
    std::shared_ptr<void> object;

    // The value that the peer passed to `Offer::of`. Throws Error(transport_unavailable) for another version
    // or size.
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
