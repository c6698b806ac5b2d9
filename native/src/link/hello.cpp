#include "link/hello.hpp"

#include <sys/random.h>

#include <cerrno>
#include <string_view>

#include "base/error.hpp"
#include "link/frame.hpp"

namespace collectives {

namespace {

// Role labels: a proof made for one direction is worthless in the other.
constexpr std::string_view callee_label = "pycollectives callee";
constexpr std::string_view caller_label = "pycollectives caller";

template <typename T>
void append(std::string& text, const T& value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::array<std::byte, 32> prove(const Identity& self, std::string_view label, const Hello& hello,
                                const Hello& reply, const std::array<std::byte, 32>* callee_proof) {
    std::string transcript(label);
    append(transcript, hello);
    append(transcript, reply);
    if (callee_proof != nullptr) append(transcript, *callee_proof);
    return hmac_sha256(std::as_bytes(std::span(self.secret)), std::as_bytes(std::span(transcript)));
}

Hello fresh(const Identity& self, int to, int lane) {
    Hello hello;
    hello.version = wire_version;
    hello.group = self.group;
    hello.epoch = self.epoch;
    hello.from = self.rank;
    hello.to = to;
    hello.size = self.size;
    hello.lane = static_cast<std::uint16_t>(lane);
    if (::getrandom(hello.nonce.data(), hello.nonce.size(), 0) != static_cast<ssize_t>(hello.nonce.size())) {
        throw_system("getrandom", errno);
    }
    return hello;
}

}  // namespace

const char* explain(Verdict verdict) {
    switch (verdict) {
        case Verdict::welcome:
            return "welcome";
        case Verdict::other_version:
            return "the wire formats differ";
        case Verdict::other_group:
            return "it belongs to another job or communicator";
        case Verdict::other_epoch:
            return "it is in another epoch of the group";
        case Verdict::not_me:
            return "another rank answered at this address";
        case Verdict::wrong_size:
            return "the group sizes differ";
        case Verdict::wrong_proof:
            return "the job secrets differ";
        case Verdict::duplicate:
            return "this rank is connected to it already";
        case Verdict::wrong_lane:
            return "it opens fewer connections to each rank";
        case Verdict::closed:
            return "it closed the communicator";
    }
    return "an unknown verdict";
}

Hello make_hello(const Identity& self, int to, int lane) { return fresh(self, to, lane); }

Verdict judge(const Identity& self, const Hello& hello) {
    if (hello.version != wire_version) return Verdict::other_version;
    if (hello.group != self.group) return Verdict::other_group;
    if (hello.epoch != self.epoch) return Verdict::other_epoch;
    if (hello.size != self.size) return Verdict::wrong_size;
    if (hello.to != self.rank || hello.from < 0 || hello.from >= self.size || hello.from == self.rank) {
        return Verdict::not_me;
    }
    if (hello.lane >= self.connections()) return Verdict::wrong_lane;
    return Verdict::welcome;
}

Reply make_reply(const Identity& self, const Hello& hello, Verdict verdict) {
    Reply reply;
    reply.hello = fresh(self, hello.from, hello.lane);
    reply.hello.verdict = static_cast<std::uint16_t>(verdict);
    reply.proof = prove(self, callee_label, hello, reply.hello, nullptr);
    return reply;
}

Verdict judge(const Identity& self, const Hello& mine, const Reply& reply) {
    // A verdict of another version or group can't be proved: it is only ever a reason to stop.
    if (reply.hello.version != wire_version) return Verdict::other_version;
    const auto verdict = static_cast<Verdict>(reply.hello.verdict);
    if (verdict != Verdict::welcome) return verdict;
    if (reply.hello.group != self.group) return Verdict::other_group;
    if (reply.hello.epoch != self.epoch) return Verdict::other_epoch;
    if (reply.hello.from != mine.to || reply.hello.to != self.rank) return Verdict::not_me;
    const auto expected = prove(self, callee_label, mine, reply.hello, nullptr);
    return equal(expected, reply.proof) ? Verdict::welcome : Verdict::wrong_proof;
}

std::array<std::byte, 32> prove_caller(const Identity& self, const Hello& hello, const Reply& reply) {
    return prove(self, caller_label, hello, reply.hello, &reply.proof);
}

bool check_caller(const Identity& self, const Hello& hello, const Reply& reply, const Proof& proof) {
    return equal(prove_caller(self, hello, reply), proof.proof);
}

Offer make_offer(Arena& arena) {
    const Geometry& geometry = arena.geometry();
    return {arena.header().cookie, geometry.slot_bytes, geometry.staging_bytes, geometry.heap_bytes};
}

Geometry geometry_of(const Offer& offer, int size) {
    constexpr std::uint64_t largest_slot = std::uint64_t{1} << 30;
    constexpr std::uint64_t largest_heap = std::uint64_t{1} << 46;
    if (offer.slot_bytes == 0 || offer.slot_bytes > largest_slot || offer.staging_bytes == 0 ||
        offer.staging_bytes > largest_slot || offer.heap_bytes > largest_heap) {
        throw Error(ErrorKind::transport_unavailable, "a peer offered shared memory of an impossible size");
    }
    return {static_cast<std::uint32_t>(size), static_cast<std::size_t>(offer.slot_bytes),
            static_cast<std::size_t>(offer.staging_bytes), static_cast<std::size_t>(offer.heap_bytes)};
}

}  // namespace collectives
