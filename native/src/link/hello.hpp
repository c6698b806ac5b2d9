// The handshake that opens every connection: who are you, do you know the secret, do we mean the same group.
//
// Invariant: four fixed-size messages, the same ones whatever the transport; nothing a peer says is believed
// before its proof has been checked, and nothing it says decides how much is read or allocated. The proofs
// are HMAC-SHA256 over both sides' messages with a fresh nonce from each, labelled by role, so that neither
// replay nor reflection of an earlier handshake passes. The first 16 bytes of a message keep their meaning in
// all future versions, so that different versions can tell each other apart.
//
//     caller  -> Hello    who calls whom, in which group, nonce
//     callee  -> Reply    the same from its side, nonce, verdict on the hello, proof
//     caller  -> Proof    proof                                    (shared memory: + descriptors)
//     callee  -> Verdict                                           (shared memory: + descriptors)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/sha256.hpp"
#include "shm/arena.hpp"

namespace collectives {

inline constexpr std::uint64_t hello_magic = 0x6c6c6f6379700001;  // also tells byte orders apart

enum class Verdict : std::uint16_t {
    welcome = 1,
    other_version,  // the wire formats differ
    other_group,    // another job, or another communicator of this one
    other_epoch,    // the group has met again since, or not yet
    not_me,         // the caller meant another rank
    wrong_size,     // the group has another size here
    wrong_proof,    // the secret differs
    duplicate,      // this rank is connected already
    wrong_lane,     // links have fewer connections here
    closed,         // this communicator has been closed here
};

const char* explain(Verdict verdict);

struct Hello {
    std::uint64_t magic = hello_magic;
    std::uint32_t version = 0;
    std::uint16_t verdict = 0;  // in a reply
    std::uint16_t lane = 0;     // which connection of the link this is
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

// What a rank says about its arena when it hands over the descriptors.
struct Offer {
    std::array<std::uint64_t, 2> cookie{};
    std::uint64_t slot_bytes = 0;
    std::uint64_t staging_bytes = 0;
    std::uint64_t heap_bytes = 0;
};

struct Proof {
    std::array<std::byte, 32> proof{};
    Offer offer;
};
static_assert(sizeof(Proof) == 72);

struct Closing {
    std::uint32_t verdict = 0;
    std::uint32_t watched = 0;  // shared memory, 1: both keep the connection, to notice the other's end
    Offer offer;
};
static_assert(sizeof(Closing) == 48);

// Connections with data of one link over TCP, at most.
inline constexpr int most_lanes = 16;

// One side's standing facts.
struct Identity {
    std::array<std::byte, 16> group{};
    std::uint32_t epoch = 0;
    int rank = 0;
    int size = 0;
    std::string secret;
    int lanes = 1;  // connections of each link over TCP that carry data

    // Of each link over TCP: its lanes, and a last one for the farewell.
    int connections() const { return lanes + 1; }
};

Hello make_hello(const Identity& self, int to, int lane = 0);
// The callee's check of a hello, and its reply.
Verdict judge(const Identity& self, const Hello& hello);
Reply make_reply(const Identity& self, const Hello& hello, Verdict verdict);
// The caller's check of a reply.
Verdict judge(const Identity& self, const Hello& mine, const Reply& reply);
std::array<std::byte, 32> prove_caller(const Identity& self, const Hello& hello, const Reply& reply);
bool check_caller(const Identity& self, const Hello& hello, const Reply& reply, const Proof& proof);

Offer make_offer(Arena& arena);
// Error(transport_unavailable) if it can't be true.
Geometry geometry_of(const Offer& offer, int size);

}  // namespace collectives
