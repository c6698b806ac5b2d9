#include "link/hello.hpp"

#include <sys/random.h>

#include <cerrno>
#include <string_view>

#include "base/error.hpp"
#include "link/frame.hpp"

namespace collectives {

namespace {

// Role labels, so that a proof for one direction or message is not valid for another.
constexpr std::string_view callee_label = "pycollectives callee";
constexpr std::string_view caller_label = "pycollectives caller";
constexpr std::string_view closing_label = "pycollectives callee's offer";

using Digest = std::array<std::byte, 32>;

template <typename T>
void append(std::string& text, const T& value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

Digest sign(const Identity& self, const std::string& transcript) {
    return hmac_sha256(std::as_bytes(std::span(self.secret)), std::as_bytes(std::span(transcript)));
}

Digest prove_callee(const Identity& self, const Hello& hello, const Hello& reply) {
    std::string transcript(callee_label);
    append(transcript, hello);
    append(transcript, reply);
    return sign(self, transcript);
}

// The proof for a message (without its proof), an offer, and all messages before, of which `last` is the last
// proof.
template <typename Message>
Digest prove_offer(const Identity& self, std::string_view label, const Hello& hello, const Reply& reply,
                   const Digest& last, Message message, std::span<const std::byte> offer) {
    message.proof = {};
    std::string transcript(label);
    append(transcript, hello);
    append(transcript, reply.hello);
    append(transcript, last);
    append(transcript, message);
    transcript.append(reinterpret_cast<const char*>(offer.data()), offer.size());
    return sign(self, transcript);
}

Hello fresh(const Identity& self, int to, int connection) {
    Hello hello;
    hello.version = wire_version;
    hello.group = self.group;
    hello.epoch = self.epoch;
    hello.from = self.rank;
    hello.to = to;
    hello.size = self.size;
    hello.connection = static_cast<std::uint16_t>(connection);
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
        case Verdict::wrong_connection:
            return "it opens fewer connections to each rank";
        case Verdict::closed:
            return "it closed the communicator";
    }
    return "an unknown verdict";
}

Hello make_hello(const Identity& self, int to, int connection) { return fresh(self, to, connection); }

Verdict judge(const Identity& self, const Hello& hello) {
    if (hello.version != wire_version) return Verdict::other_version;
    if (hello.group != self.group) return Verdict::other_group;
    if (hello.epoch != self.epoch) return Verdict::other_epoch;
    if (hello.size != self.size) return Verdict::wrong_size;
    if (hello.to != self.rank || hello.from < 0 || hello.from >= self.size || hello.from == self.rank) {
        return Verdict::not_me;
    }
    return Verdict::welcome;
}

Reply make_reply(const Identity& self, const Hello& hello, Verdict verdict) {
    Reply reply;
    reply.hello = fresh(self, hello.from, hello.connection);
    reply.hello.verdict = static_cast<std::uint16_t>(verdict);
    reply.proof = prove_callee(self, hello, reply.hello);
    return reply;
}

Verdict judge(const Identity& self, const Hello& mine, const Reply& reply) {
    // A verdict about another version or group has no proof, but it is only a reason to stop.
    if (reply.hello.version != wire_version) return Verdict::other_version;
    const auto verdict = static_cast<Verdict>(reply.hello.verdict);
    if (verdict != Verdict::welcome) return verdict;
    if (reply.hello.group != self.group) return Verdict::other_group;
    if (reply.hello.epoch != self.epoch) return Verdict::other_epoch;
    if (reply.hello.from != mine.to || reply.hello.to != self.rank) return Verdict::not_me;
    const auto expected = prove_callee(self, mine, reply.hello);
    return equal(expected, reply.proof) ? Verdict::welcome : Verdict::wrong_proof;
}

OfferHead head_of(const Offer& offer) {
    if (offer.bytes.size() > most_offered || offer.descriptors.size() > most_offered_descriptors) {
        throw Error(ErrorKind::invalid, "a transport offers more than a handshake carries");
    }
    return {offer.version, static_cast<std::uint8_t>(offer.descriptors.size()),
            static_cast<std::uint16_t>(offer.bytes.size()), 0};
}

Proof prove_caller(const Identity& self, const Hello& hello, const Reply& reply, const OfferHead& head,
                   std::span<const std::byte> offer) {
    Proof proof{{}, head};
    proof.proof = prove_offer(self, caller_label, hello, reply, reply.proof, proof, offer);
    return proof;
}

bool check_caller(const Identity& self, const Hello& hello, const Reply& reply, const Proof& proof,
                  std::span<const std::byte> offer) {
    return equal(prove_offer(self, caller_label, hello, reply, reply.proof, proof, offer), proof.proof);
}

Closing close_with(const Identity& self, const Hello& hello, const Reply& reply, const Proof& proof,
                   bool watched, const OfferHead& head, std::span<const std::byte> offer) {
    Closing closing{static_cast<std::uint32_t>(Verdict::welcome), watched ? 1U : 0U, {}, head};
    closing.proof = prove_offer(self, closing_label, hello, reply, proof.proof, closing, offer);
    return closing;
}

bool check_closing(const Identity& self, const Hello& hello, const Reply& reply, const Proof& proof,
                   const Closing& closing, std::span<const std::byte> offer) {
    return equal(prove_offer(self, closing_label, hello, reply, proof.proof, closing, offer), closing.proof);
}

}  // namespace collectives
