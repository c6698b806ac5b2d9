// The handshake that opens every connection: who are you, do you know the secret, do we mean the same group.
//
// Invariant: four messages of fixed size, the same ones whatever the transport, the last two of which
// announce the transport's offer that follows them. Nothing a peer says is believed before its proof has been
// checked. What it says decides how much is read only within a fixed limit, and never how much is allocated.
// The proofs are HMAC-SHA256 over both sides' messages and offers with a fresh nonce from each, labelled by
// role, so that neither replay nor reflection of an earlier handshake passes. The first 16 bytes of a message
// keep their meaning in all future versions, so that different versions can tell each other apart.
//
//     caller  -> Hello            who calls whom, in which group, nonce
//     callee  -> Reply            the same from its side, nonce, verdict on the hello, proof
//     caller  -> Proof + offer    proof, also of the offer         (local sockets: + descriptors)
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
    other_epoch,       // the group has met again since, or not yet
    not_me,            // the caller meant another rank
    wrong_size,        // the group has another size here
    wrong_proof,       // the secret differs
    duplicate,         // this rank is connected already
    wrong_connection,  // links have fewer connections here
    closed,            // this communicator has been closed here
};

const char* explain(Verdict verdict);

struct Hello {
    std::uint64_t magic = hello_magic;
    std::uint32_t version = 0;
    std::uint16_t verdict = 0;     // in a reply
    std::uint16_t connection = 0;  // which one of the link this is
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

// What announces an offer. Its bytes follow the message, its descriptors come with the message's first byte.
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
    std::uint32_t watched = 0;          // 1: both keep the connection, to notice the other's end
    std::array<std::byte, 32> proof{};  // of all this; only where the verdict is `welcome`
    OfferHead offer;
};
static_assert(sizeof(Closing) == 48);

// One side's standing facts.
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
// Error(invalid) for one that is too large.
OfferHead head_of(const Offer& offer);
// The caller's proof, which covers its offer, and the callee's proof of its own one. `offer`: its bytes.
Proof prove_caller(const Identity& self, const Hello& hello, const Reply& reply, const OfferHead& head = {},
                   std::span<const std::byte> offer = {});
bool check_caller(const Identity& self, const Hello& hello, const Reply& reply, const Proof& proof,
                  std::span<const std::byte> offer = {});
Closing close_with(const Identity& self, const Hello& hello, const Reply& reply, const Proof& proof,
                   bool watched, const OfferHead& head = {}, std::span<const std::byte> offer = {});
bool check_closing(const Identity& self, const Hello& hello, const Reply& reply, const Proof& proof,
                   const Closing& closing, std::span<const std::byte> offer = {});

}  // namespace collectives
