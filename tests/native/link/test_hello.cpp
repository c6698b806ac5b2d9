// The handshake against peers that lie, mumble or say nothing.
#include <poll.h>
#include <sys/socket.h>

#include <random>

#include "groups.hpp"

using namespace collectives;
using namespace collectives::testing;
using namespace std::chrono_literals;

namespace {

UniqueFd call(const std::string& address) {
    int error = 0;
    UniqueFd fd = connect_tcp(address, error);
    REQUIRE(error == 0);
    pollfd connected{fd.get(), POLLOUT, 0};
    REQUIRE(::poll(&connected, 1, 10'000) == 1);
    REQUIRE(connect_result(fd.get()) == 0);
    return fd;
}

template <typename T>
std::optional<T> receive(int fd, std::chrono::milliseconds patience) {
    T value{};
    std::size_t have = 0;
    const auto end = Clock::now() + patience;
    while (have < sizeof(T) && Clock::now() < end) {
        const ssize_t got =
            ::recv(fd, reinterpret_cast<char*>(&value) + have, sizeof(T) - have, MSG_DONTWAIT);
        if (got == 0) return std::nullopt;
        if (got > 0) have += static_cast<std::size_t>(got);
        if (got < 0) std::this_thread::yield();
    }
    return have == sizeof(T) ? std::optional<T>(value) : std::nullopt;
}

template <typename T>
void say(int fd, const T& value) {
    REQUIRE(::send(fd, &value, sizeof(value), MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(value)));
}

bool hung_up(int fd, std::chrono::milliseconds patience) {
    const auto end = Clock::now() + patience;
    char byte = 0;
    while (Clock::now() < end) {
        const ssize_t got = ::recv(fd, &byte, 1, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno == ECONNRESET)) return true;
        if (got < 0) std::this_thread::yield();
    }
    return false;
}

Identity identity(int rank, const std::string& secret = "secret") {
    return options(rank, 3, 0, secret).identity;
}

// One that offers some bytes, and makes no links.
class OfferingTransport final : public Transport {
  public:
    const Capabilities& capabilities() const override {
        static constexpr Capabilities answer{.takes_sockets = true};
        return answer;
    }
    Meeting meeting() const override { return Meeting::network; }
    int connections() const override { return 2; }
    Offer offer(int peer, int) override { return Offer::of(1, peer); }
    std::unique_ptr<Link> connect(const Peer&, std::vector<Connection>) override { return nullptr; }
};

// Rank 1 of three, listening; who gets through is counted.
struct Callee {
    explicit Callee(const std::string& secret = "secret") {
        control.join(
            identity(1, secret), {},
            {[&](Connected c) { connected.push_back(c.peer); }, [](int, const Error&) {}, [](int) {}});
        UniqueFd fd = listen_tcp(address);
        control.accept(identity(1).group, "tcp", transport);
        control.listen("tcp", transport.meeting(), std::move(fd));
    }

    std::string address;
    std::vector<int> connected;
    OfferingTransport transport;
    Control control;
};

}  // namespace

TEST_CASE("each side proves that it knows the secret") {
    Callee callee;
    const Identity me = identity(2);
    const UniqueFd fd = call(callee.address);
    const Hello hello = make_hello(me, 1);
    say(fd.get(), hello);
    const auto reply = receive<Reply>(fd.get(), 1000ms);
    REQUIRE(reply.has_value());
    CHECK(judge(me, hello, *reply) == Verdict::welcome);
    CHECK(judge(identity(2, "another"), hello, *reply) == Verdict::wrong_proof);
    const Proof proof = prove_caller(me, hello, *reply);
    say(fd.get(), proof);
    const auto closing = receive<Closing>(fd.get(), 1000ms);
    REQUIRE(closing.has_value());
    CHECK(static_cast<Verdict>(closing->verdict) == Verdict::welcome);
    REQUIRE(closing->offer.length == sizeof(int));
    const auto offer = receive<int>(fd.get(), 1000ms);
    REQUIRE(offer.has_value());
    CHECK(*offer == 2);  // made for this caller
    const auto bytes = std::as_bytes(std::span(&*offer, 1));
    CHECK(check_closing(me, hello, *reply, proof, *closing, bytes));
    CHECK(!check_closing(identity(2, "another"), hello, *reply, proof, *closing, bytes));
    Closing changed = *closing;
    changed.offer.version = 2;
    CHECK(!check_closing(me, hello, *reply, proof, changed, bytes));
    changed = *closing;
    changed.watched ^= 1;
    CHECK(!check_closing(me, hello, *reply, proof, changed, bytes));
    const int other = 3;
    CHECK(!check_closing(me, hello, *reply, proof, *closing, std::as_bytes(std::span(&other, 1))));
}

namespace {

// What a caller is told that sends its proof of `signed_offer` with `sent` behind it; nothing where it is
// dropped.
std::optional<Verdict> verdict_on_offer(const Callee& callee, const OfferHead& head,
                                        const std::string& signed_offer, const std::string& sent) {
    const Identity me = identity(2);
    const UniqueFd fd = call(callee.address);
    const Hello hello = make_hello(me, 1);
    say(fd.get(), hello);
    const auto reply = receive<Reply>(fd.get(), 1000ms);
    REQUIRE(reply.has_value());
    const Proof proof = prove_caller(me, hello, *reply, head, std::as_bytes(std::span(signed_offer)));
    std::string message(reinterpret_cast<const char*>(&proof), sizeof(proof));
    message += sent;
    REQUIRE(::send(fd.get(), message.data(), message.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(message.size()));
    const auto closing = receive<Closing>(fd.get(), 1000ms);
    if (closing) return static_cast<Verdict>(closing->verdict);
    CHECK(hung_up(fd.get(), 1000ms));
    return std::nullopt;
}

}  // namespace

TEST_CASE("an offer is covered by its sender's proof, up to the largest that fits") {
    for (const std::size_t length : {std::size_t{0}, std::size_t{1}, most_offered}) {
        const std::string offer(length, 'x');
        const OfferHead head{1, 0, static_cast<std::uint16_t>(length), 0};
        Callee callee;
        CHECK(verdict_on_offer(callee, head, offer, offer) == Verdict::welcome);
    }
    Callee callee;
    CHECK(verdict_on_offer(callee, {1, 0, 3, 0}, "abc", "abd") == Verdict::wrong_proof);
    CHECK(callee.connected.empty());
}

TEST_CASE("an offer of an impossible size ends the connection before any of it is read") {
    Callee callee;
    const std::string offer(most_offered + 1, 'x');
    CHECK(verdict_on_offer(callee, {1, 0, most_offered + 1, 0}, offer, offer) == std::nullopt);
    CHECK(verdict_on_offer(callee, {1, 0, 0xffff, 0}, offer, offer) == std::nullopt);
    CHECK(verdict_on_offer(callee, {1, 3, 1, 0}, "x", "x") == std::nullopt);
    CHECK(callee.connected.empty());
    // Others still come through.
    CHECK(verdict_on_offer(callee, {1, 0, 1, 0}, "x", "x") == Verdict::welcome);
}

TEST_CASE("a wrong secret, a reflected proof and a replayed one are refused") {
    Callee callee;
    const Identity stranger = identity(2, "another");
    Proof heard;
    {
        const UniqueFd fd = call(callee.address);
        const Hello hello = make_hello(stranger, 1);
        say(fd.get(), hello);
        const auto reply = receive<Reply>(fd.get(), 1000ms);
        REQUIRE(reply.has_value());
        const Proof proof = prove_caller(stranger, hello, *reply);
        say(fd.get(), proof);
        const auto closing = receive<Closing>(fd.get(), 1000ms);
        REQUIRE(closing.has_value());
        CHECK(static_cast<Verdict>(closing->verdict) == Verdict::wrong_proof);
        CHECK(closing->offer.length == 0);
        CHECK(closing->proof == std::array<std::byte, 32>{});
    }
    {  // the callee's own proof, sent back to it
        const UniqueFd fd = call(callee.address);
        const Hello hello = make_hello(stranger, 1);
        say(fd.get(), hello);
        const auto reply = receive<Reply>(fd.get(), 1000ms);
        REQUIRE(reply.has_value());
        Proof proof;
        proof.proof = reply->proof;
        say(fd.get(), proof);
        const auto closing = receive<Closing>(fd.get(), 1000ms);
        REQUIRE(closing.has_value());
        CHECK(static_cast<Verdict>(closing->verdict) == Verdict::wrong_proof);
    }
    {  // a handshake as it was overheard, word by word
        const Identity friendly = identity(2);
        Hello hello = make_hello(friendly, 1);
        {
            Callee other;
            const UniqueFd fd = call(other.address);
            say(fd.get(), hello);
            const auto reply = receive<Reply>(fd.get(), 1000ms);
            REQUIRE(reply.has_value());
            heard = prove_caller(friendly, hello, *reply);
        }
        const UniqueFd fd = call(callee.address);
        say(fd.get(), hello);
        REQUIRE(receive<Reply>(fd.get(), 1000ms).has_value());
        say(fd.get(), heard);
        const auto closing = receive<Closing>(fd.get(), 1000ms);
        REQUIRE(closing.has_value());
        CHECK(static_cast<Verdict>(closing->verdict) == Verdict::wrong_proof);
    }
    CHECK(callee.connected.empty());
}

TEST_CASE("a hello that does not fit is answered with the reason") {
    Callee callee;
    const auto verdict_on = [&](const std::function<void(Hello&)>& change) {
        const UniqueFd fd = call(callee.address);
        Hello hello = make_hello(identity(2), 1);
        change(hello);
        say(fd.get(), hello);
        const auto reply = receive<Reply>(fd.get(), 1000ms);
        REQUIRE(reply.has_value());
        CHECK(hung_up(fd.get(), 1000ms));
        return static_cast<Verdict>(reply->hello.verdict);
    };
    CHECK(verdict_on([](Hello& h) { h.version = 99; }) == Verdict::other_version);
    CHECK(verdict_on([](Hello& h) { h.group.fill(std::byte{1}); }) == Verdict::other_group);
    CHECK(verdict_on([](Hello& h) { h.epoch = 4; }) == Verdict::other_epoch);
    CHECK(verdict_on([](Hello& h) { h.size = 5; }) == Verdict::wrong_size);
    CHECK(verdict_on([](Hello& h) { h.to = 0; }) == Verdict::not_me);
    CHECK(verdict_on([](Hello& h) { h.from = 3; }) == Verdict::not_me);
    CHECK(verdict_on([](Hello& h) { h.from = -1; }) == Verdict::not_me);
    CHECK(verdict_on([](Hello& h) { h.from = 1; }) == Verdict::not_me);
    CHECK(verdict_on([](Hello& h) { h.connection = 2; }) == Verdict::wrong_connection);
}

TEST_CASE("callers of a communicator that is still to come wait for it, and are told when it has gone") {
    Callee callee;
    Identity other = identity(1);
    other.group.fill(std::byte{9});
    Identity me = identity(2);
    me.group = other.group;
    const auto verdict = [](const UniqueFd& fd) {
        const auto reply = receive<Reply>(fd.get(), 1000ms);
        REQUIRE(reply.has_value());
        return static_cast<Verdict>(reply->hello.verdict);
    };
    const auto join = [&] {
        callee.control.join(other, {}, {[](Connected) {}, [](int, const Error&) {}, [](int) {}});
        callee.control.accept(other.group, "tcp", callee.transport);
    };
    const UniqueFd early = call(callee.address);
    say(early.get(), make_hello(me, 1));
    CHECK(verdict(early) == Verdict::other_group);

    callee.control.expect(other.group);
    const UniqueFd waiting = call(callee.address);
    say(waiting.get(), make_hello(me, 1));
    const UniqueFd impatient = call(callee.address);
    say(impatient.get(), make_hello(me, 1));
    say(impatient.get(), make_hello(me, 1));
    CHECK(hung_up(impatient.get(), 1000ms));
    join();
    CHECK(verdict(waiting) == Verdict::welcome);

    // Others of this job are not disturbed.
    const UniqueFd first = call(callee.address);
    say(first.get(), make_hello(identity(2), 1));
    CHECK(verdict(first) == Verdict::welcome);

    callee.control.leave(other.group);
    CHECK(hung_up(waiting.get(), 1000ms));
    const UniqueFd late = call(callee.address);
    say(late.get(), make_hello(me, 1));
    CHECK(verdict(late) == Verdict::closed);

    me.group.fill(std::byte{10});
    callee.control.expect(me.group);
    const UniqueFd refused = call(callee.address);
    say(refused.get(), make_hello(me, 1));
    callee.control.forget(me.group);
    CHECK(verdict(refused) == Verdict::closed);
}

TEST_CASE("garbage of any length is dropped and the ranks still meet") {
    std::mt19937 random(7);
    Callee callee;
    for (int i = 0; i < 300; ++i) {
        const UniqueFd fd = call(callee.address);
        std::string noise(random() % 200, '\0');
        for (char& c : noise) c = static_cast<char>(random());
        // Some of it begins like one of us.
        if (i % 3 == 0 && noise.size() >= sizeof(hello_magic))
            std::memcpy(noise.data(), &hello_magic, sizeof(hello_magic));
        [[maybe_unused]] const auto n = ::send(fd.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
    }
    const UniqueFd fd = call(callee.address);
    say(fd.get(), make_hello(identity(0), 1));
    CHECK(receive<Reply>(fd.get(), 2000ms).has_value());
}

TEST_CASE("callers who say nothing cannot keep others out") {
    Callee callee;
    std::vector<UniqueFd> silent;
    for (int i = 0; i < 200; ++i) silent.push_back(call(callee.address));
    const UniqueFd fd = call(callee.address);
    say(fd.get(), make_hello(identity(0), 1));
    CHECK(receive<Reply>(fd.get(), 2000ms).has_value());
    for (const UniqueFd& each : silent) CHECK(hung_up(each.get(), 5000ms));
}

TEST_CASE("a rank with another secret is told so, and those who share one go on") {
    std::string address;
    UniqueFd listener = listen_tcp(address);
    Group callee(options(1, 2, 0, "one"));
    callee.links().listen("tcp", std::move(listener));
    Group caller(options(0, 2, 0, "two"));
    caller.links().route(1, "tcp", {address}, "host1");
    try {
        caller.connect({1}, 5.0, {});
        FAIL("connected with the wrong secret");
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::auth);
        CHECK(error.ranks() == std::vector<int>{1});
    }
}

TEST_CASE("a caller waits for a peer that has its proof, for that may have made the link") {
    std::string address;
    const UniqueFd listening = listen_tcp(address);
    std::atomic<int> made{0};
    OfferingTransport transport;
    Control control;
    control.join(identity(1), {}, {[&](Connected) { ++made; }, [](int, const Error&) {}, [](int) {}});
    control.dial(identity(1).group, 2, transport, {address});
    pollfd called{listening.get(), POLLIN, 0};
    REQUIRE(::poll(&called, 1, 10'000) == 1);
    const UniqueFd peer(::accept(listening.get(), nullptr, nullptr));
    const auto hello = receive<Hello>(peer.get(), 10'000ms);
    REQUIRE(hello.has_value());
    const Identity callee = identity(2);
    const Reply reply = make_reply(callee, *hello, Verdict::welcome);
    say(peer.get(), reply);
    const auto proof = receive<Proof>(peer.get(), 10'000ms);
    REQUIRE(proof.has_value());
    std::this_thread::sleep_for(2500ms);  // longer than a handshake may take
    CHECK(made == 0);
    say(peer.get(), close_with(callee, *hello, reply, *proof, false));
    const auto end = Clock::now() + 10s;
    while (made == 0 && Clock::now() < end) std::this_thread::sleep_for(1ms);
    CHECK(made == 1);
}

TEST_CASE("an address where nobody listens is given up soon") {
    std::string address;
    listen_tcp(address).reset();
    Group caller(options(0, 2));
    caller.links().route(1, "tcp", {address}, "host1");
    const auto began = Clock::now();
    try {
        caller.connect({1}, 30.0, {});
        FAIL("connected to nobody");
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::peer_lost);
    }
    CHECK(seconds_since(began) < 5.0);
}
