// The handshake that opens every connection: it checks identity, secret and group of both sides.
//
// Invariant: a handshake has four messages of fixed size, which are the same for every transport; the last
// two announce the transport's offer that follows them. Nothing from a peer is used before its proof has been
// checked; it may decide, within a fixed limit, how much is read, but never how much is allocated. A proof is
// an HMAC-SHA256 over the messages and offers of both sides, each with a fresh nonce and a label for its
// role, so that an earlier handshake can be neither replayed nor reflected. The first 16 bytes of a message
// keep their meaning in all future versions, so that different versions recognise each other.
//
//     caller  -> Hello            who calls whom, in which group, nonce
//     callee  -> Reply            its own identity and group, nonce, verdict on the hello, proof
//     caller  -> Proof + offer    proof, which covers the offer    (local sockets: + descriptors)
//     callee  -> Closing + offer  verdict, proof of the offer      (local sockets: + descriptors)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/sha256.hpp"
#include "link/offer.hpp"

namespace collectives {

inline constexpr std::uint64_t hello_magic = 0x6c6c6f6379700001;  // also tells byte orders apart

enum class Verdict : std::uint16_t {
    welcome = 1,
    other_version,     // the wire formats differ
    other_group,       // another job, or another communicator of this one
    other_epoch,       // the group has formed again in one of the processes only
    not_me,            // the caller meant another rank
    wrong_size,        // the group has another size here
    wrong_proof,       // the secret differs
    duplicate,         // the caller is connected already
    wrong_connection,  // links have fewer connections here
    closed,            // this communicator has been closed here
};

const char* explain(Verdict verdict);

struct Hello {
    std::uint64_t magic = hello_magic;
    std::uint32_t version = 0;
    std::uint16_t verdict = 0;     // used in a reply
    std::uint16_t connection = 0;  // the number of this connection in the link
    std::array<std::byte, 16> group{};
    std::uint32_t epoch = 0;
    std::int32_t from = 0;
    std::int32_t to = 0;
    std::int32_t size = 0;
    std::array<std::byte, 32> nonce{};
};
static_assert(sizeof(Hello) == 80);

struct Reply {
    Hello hello;
    std::array<std::byte, 32> proof{};
};
static_assert(sizeof(Reply) == 112);

// Announces an offer. Its bytes follow the message; its descriptors come with the first byte of the message.
struct OfferHead {
    std::uint8_t version = 0;
    std::uint8_t descriptors = 0;
    std::uint16_t length = 0;
    std::uint32_t unused = 0;

    bool is_possible() const { return length <= most_offered && descriptors <= most_offered_descriptors; }
};
static_assert(sizeof(OfferHead) == 8);

struct Proof {
    std::array<std::byte, 32> proof{};
    OfferHead offer;
};
static_assert(sizeof(Proof) == 40);

struct Closing {
    std::uint32_t verdict = 0;
    std::uint32_t watched = 0;          // 1: both sides keep the connection, to notice the end of the other
    std::array<std::byte, 32> proof{};  // covers everything before; set only if the verdict is `welcome`
    OfferHead offer;
};
static_assert(sizeof(Closing) == 48);

// The facts about one side that are the same in all its handshakes.
struct Identity {
    std::array<std::byte, 16> group{};
    std::uint32_t epoch = 0;
    int rank = 0;
    int size = 0;
    std::string secret;
};

Hello make_hello(const Identity& self, int to, int connection = 0);
// The callee's check of a hello, and its reply.
Verdict judge(const Identity& self, const Hello& hello);
Reply make_reply(const Identity& self, const Hello& hello, Verdict verdict);
// The caller's check of a reply.
Verdict judge(const Identity& self, const Hello& mine, const Reply& reply);
// The head for an offer. Throws Error(invalid) if the offer is too large.
OfferHead head_of(const Offer& offer);
// The caller's proof, which covers the caller's offer, and the callee's proof of its own offer. `offer`: the
// bytes of the offer.
Proof prove_caller(const Identity& self, const Hello& hello, const Reply& reply, const OfferHead& head = {},
                   std::span<const std::byte> offer = {});
bool check_caller(const Identity& self, const Hello& hello, const Reply& reply, const Proof& proof,
                  std::span<const std::byte> offer = {});
Closing close_with(const Identity& self, const Hello& hello, const Reply& reply, const Proof& proof,
                   bool watched, const OfferHead& head = {}, std::span<const std::byte> offer = {});
bool check_closing(const Identity& self, const Hello& hello, const Reply& reply, const Proof& proof,
                   const Closing& closing, std::span<const std::byte> offer = {});

}  // namespace collectives
