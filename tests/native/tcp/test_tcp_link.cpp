// Links over several sockets: messages in parts, in whatever order these come, and what is not ours.
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>

#include "groups.hpp"
#include "tcp/link.hpp"

using namespace collectives;
using namespace collectives::testing;

namespace {

constexpr std::size_t slice = 128 << 10;

std::array<UniqueFd, 2> pair_of_sockets() {
    std::array<int, 2> fds{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds.data()) == 0);
    return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// A link, and the other ends of its sockets.
struct Half {
    explicit Half(std::size_t lanes) : said(lanes) {
        std::vector<UniqueFd> ours;
        for (std::size_t i = 0; i < lanes; ++i) {
            auto [mine, theirs] = pair_of_sockets();
            ours.push_back(std::move(mine));
            ends.push_back(std::move(theirs));
        }
        auto [mine, theirs] = pair_of_sockets();
        farewell.emplace(std::move(theirs));
        link = std::make_unique<TcpLink>(Peer{1, "there"}, std::move(ours), std::move(mine), slice);
    }

    // Say part `part` (from 1 on, 0: all) of message `ordinal`, which has `data`; up to `most` bytes of it.
    void say(std::size_t lane, const Context& context, std::uint32_t ordinal, std::uint32_t part,
             const std::vector<std::byte>& data, std::size_t most = Parts::size) {
        const Frame frame{context.call, data.size(), frame_magic, ordinal, part, 0};
        const std::size_t begin = part == 0 ? 0 : (part - 1) * Parts::size;
        const std::size_t n = std::min({data.size() - begin, std::size_t{Parts::size}, most});
        const auto* head = reinterpret_cast<const std::byte*>(&frame);
        std::vector<std::byte>& queue = said[lane];
        queue.insert(queue.end(), head, head + sizeof(frame));
        queue.insert(queue.end(), data.data() + begin, data.data() + begin + n);
        pump();
    }
    // Send what the sockets take of it.
    void pump() {
        for (std::size_t lane = 0; lane < ends.size(); ++lane) {
            std::vector<std::byte>& queue = said[lane];
            if (queue.empty()) continue;
            const ssize_t sent = ::send(ends[lane].get(), queue.data(), queue.size(), MSG_NOSIGNAL);
            if (sent > 0) queue.erase(queue.begin(), queue.begin() + sent);
        }
    }

    std::vector<std::vector<std::byte>> said;  // by lane, not sent yet
    std::vector<UniqueFd> ends;
    std::optional<Farewell> farewell;
    std::unique_ptr<TcpLink> link;
};

Context operation(std::uint64_t sequence) {
    Call call;
    call.sequence = sequence;
    return Context(call);
}

// The next message of n bytes, as far as it comes; read into place, or looked at.
std::vector<std::byte> take(Half& half, const Context& context, std::size_t n, bool by_looks) {
    TcpLink& link = *half.link;
    std::vector<std::byte> got(n);
    std::size_t have = 0;
    link.expect(context, n);
    for (int idle = 0; !link.received() && idle < 1000; ++idle) {
        half.pump();
        std::size_t more = 0;
        if (by_looks) {
            const auto seen = link.lend(std::min<std::size_t>(16, n - have));
            more = seen.size();
            if (more > 0) {
                std::memcpy(got.data() + have, seen.data(), more);
                link.consume(more);
            }
        } else {
            more = link.read(got.data() + have, n - have, Stores::cached);
        }
        have += more;
        if (more > 0) idle = 0;
    }
    got.resize(have);
    return got;
}

ErrorKind kind_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        return error.kind();
    }
    FAIL("nothing was thrown");
    return ErrorKind::invalid;
}

}  // namespace

TEST_CASE("a little of a message waits for more, until no more has come") {
    Half half(1);
    const Context context = operation(0);
    const std::vector<std::byte> data(4096);
    const auto arrived = [&] {
        int n = 0;
        REQUIRE(::ioctl(half.ends[0].get(), FIONREAD, &n) == 0);
        return static_cast<std::size_t>(n);
    };
    half.link->begin(context, data.size());
    CHECK(half.link->write(data.data(), 1000) == 0);
    std::vector<pollfd> polled;
    half.link->arm(true, polled);
    REQUIRE(polled.size() == 1);
    CHECK((polled[0].events & POLLOUT) != 0);  // whoever sleeps is called again at once
    CHECK(half.link->write(data.data(), 2000) == 0);
    CHECK(arrived() == 0);
    CHECK(half.link->write(data.data(), 2000) == 2000);
    CHECK(arrived() == sizeof(Frame) + 2000);
    CHECK(half.link->write(data.data() + 2000, 2096) == 2096);  // the end waits for nothing
    CHECK(half.link->finished());
}

TEST_CASE("messages of all lengths get through any number of lanes, both ways at once") {
    for (const std::size_t lanes : {1, 2, 3, 16}) {
        CAPTURE(lanes);
        std::vector<UniqueFd> left;
        std::vector<UniqueFd> right;
        auto [farewell_left, farewell_right] = pair_of_sockets();
        for (std::size_t i = 0; i < lanes; ++i) {
            auto [a, b] = pair_of_sockets();
            left.push_back(std::move(a));
            right.push_back(std::move(b));
        }
        TcpLink one(Peer{1, "there"}, std::move(left), std::move(farewell_left), slice);
        TcpLink other(Peer{0, "here"}, std::move(right), std::move(farewell_right), slice);
        std::mt19937 random(7);
        std::uint64_t number = 0;
        for (const std::size_t n :
             {std::size_t{0}, std::size_t{16}, std::size_t{Parts::size}, std::size_t{Parts::size + 16},
              std::size_t{3 * Parts::size}, std::size_t{20 * Parts::size + 48}, std::size_t{64}}) {
            CAPTURE(n);
            const Context context = operation(number++);
            const auto there = random_bytes(n, 1);
            const auto back = random_bytes(n, 2);
            std::vector<std::byte> got_there(n);
            std::vector<std::byte> got_back(n);
            struct Side {
                TcpLink& link;
                const std::vector<std::byte>& out;
                std::vector<std::byte>& in;
                std::size_t put = 0;
                std::size_t got = 0;
            };
            std::array<Side, 2> sides{Side{one, there, got_back}, Side{other, back, got_there}};
            for (Side& side : sides) {
                side.link.begin(context, n);
                side.link.expect(context, n);
            }
            const auto is_done = [](const Side& s) { return s.link.finished() && s.link.received(); };
            const bool by_looks = random() % 2 == 0;
            while (!std::all_of(sides.begin(), sides.end(), is_done)) {
                for (Side& side : sides) {
                    // Never all at once, as where data becomes ready bit by bit.
                    const std::size_t ready =
                        std::min(n - side.put, std::size_t{random() % 300'000 / 16 * 16});
                    if (!side.link.finished()) side.put += side.link.write(side.out.data() + side.put, ready);
                    CHECK(side.link.released() == side.put);
                    if (!by_looks) {
                        const std::size_t room = std::min(n - side.got, std::size_t{random() % 300'000});
                        side.got += side.link.read(side.in.data() + side.got, room, Stores::cached);
                    } else if (const auto seen = side.link.lend(std::min<std::size_t>(16, n - side.got));
                               !seen.empty()) {
                        std::memcpy(side.in.data() + side.got, seen.data(), seen.size());
                        side.link.consume(seen.size());
                        side.got += seen.size();
                    }
                }
            }
            CHECK(same(got_there, there));
            CHECK(same(got_back, back));
        }
    }
}

TEST_CASE("parts that overtake each other, and the next message, land in their places") {
    for (const bool by_looks : {false, true}) {
        CAPTURE(by_looks);
        Half half(3);
        const Context context = operation(0);
        const Context next = operation(1);
        const auto first = random_bytes(4 * Parts::size + 160, 3);
        const auto second = random_bytes(2 * Parts::size, 4);
        half.say(2, context, 1, 2, first);
        half.say(0, context, 1, 1, first);
        half.say(1, context, 1, 5, first);
        half.say(1, next, 2, 1, second);
        half.say(0, context, 1, 4, first);
        half.say(0, next, 2, 2, second);
        half.say(2, context, 1, 3, first);
        CHECK(take(half, context, first.size(), by_looks) == first);
        CHECK(take(half, next, second.size(), by_looks) == second);
    }
}

TEST_CASE("a lane whose next message has begun is not slept on") {
    Half half(2);
    const Context context = operation(0);
    const auto data = random_bytes(2 * Parts::size, 5);
    const auto small = random_bytes(64, 6);
    half.say(0, context, 1, 1, data);
    half.say(0, operation(1), 2, 0, small);
    std::vector<std::byte> got(data.size());
    half.link->expect(context, data.size());
    std::size_t have = 0;
    for (int i = 0; i < 10; ++i)
        have += half.link->read(got.data() + have, got.size() - have, Stores::cached);
    CHECK(have == Parts::size);
    std::vector<pollfd> polled;
    half.link->arm(false, polled);
    CHECK(::poll(polled.data(), polled.size(), 0) == 0);
    half.say(1, context, 1, 2, data);
    CHECK(::poll(polled.data(), polled.size(), 0) == 1);
    have += half.link->read(got.data() + have, got.size() - have, Stores::cached);
    CHECK(got == data);
    CHECK(take(half, operation(1), small.size(), false) == small);
}

TEST_CASE("nobody sleeps while a lane takes more") {
    std::string address;
    const UniqueFd listener = listen_tcp(address);
    std::vector<UniqueFd> ours;
    std::vector<UniqueFd> ends;
    for (int i = 0; i < 2; ++i) {
        int error = 0;
        ours.push_back(connect_tcp(address, error));
        pollfd waiting{listener.get(), POLLIN, 0};
        REQUIRE(::poll(&waiting, 1, 10'000) == 1);
        ends.push_back(accept_from(listener.get(), error));
        const int window = 1 << 20;
        REQUIRE(::setsockopt(ends.back().get(), SOL_SOCKET, SO_RCVBUF, &window, sizeof(window)) == 0);
    }
    const auto data = random_bytes(40 * Parts::size, 13);
    while (::send(ours[0].get(), data.data(), data.size(), MSG_DONTWAIT) > 0) {
    }
    auto [farewell, end] = pair_of_sockets();
    TcpLink link(Peer{1, "there"}, std::move(ours), std::move(farewell), slice);
    link.begin(operation(0), data.size());
    std::vector<pollfd> polled;
    for (bool more = true; more;) {
        more = link.write(data.data(), data.size()) > 0;
        polled.clear();
        link.arm(true, polled);
        more = more || ::poll(polled.data(), polled.size(), 0) > 0;
    }
    int there = 0;
    REQUIRE(::ioctl(ends[1].get(), FIONREAD, &there) == 0);
    CHECK(there > 64 << 10);
}

TEST_CASE("what was sent before lanes were closed still counts") {
    for (const bool by_looks : {false, true}) {
        Half half(3);
        const Context context = operation(0);
        const auto data = random_bytes(2 * Parts::size, 8);
        half.say(1, context, 1, 1, data);
        half.say(1, context, 1, 2, data);
        half.ends[0].reset();
        half.ends[2].reset();
        CHECK(half.link->lost() == nullptr);
        CHECK(take(half, context, data.size(), by_looks) == data);
        half.ends[1].reset();
        CHECK(half.link->lost() != nullptr);
    }
}

TEST_CASE("a peer that ends within a part is lost") {
    for (const bool by_looks : {false, true}) {
        Half half(2);
        half.farewell->say(std::nullopt);
        const auto data = random_bytes(2 * Parts::size, 9);
        half.say(1, operation(0), 1, 2, data, 1000);
        half.ends[1].reset();
        CHECK(kind_of([&] { take(half, operation(0), data.size(), by_looks); }) == ErrorKind::peer_lost);
    }
}

TEST_CASE("a peer that gives up says whose loss is the reason, also in the middle of a message") {
    const auto data = random_bytes(2 * Parts::size, 9);
    const auto blamed = [&](std::size_t sent, std::optional<int> lost) {
        auto [here, there] = pair_of_sockets();
        auto [farewell_here, farewell_there] = pair_of_sockets();
        std::vector<UniqueFd> left;
        std::vector<UniqueFd> right;
        left.push_back(std::move(here));
        right.push_back(std::move(there));
        TcpLink one(Peer{1, "there"}, std::move(left), std::move(farewell_here), slice);
        TcpLink other(Peer{0, "here"}, std::move(right), std::move(farewell_there), slice);
        const Context context = operation(0);
        if (sent > 0) {
            one.begin(context, data.size());
            one.write(data.data(), sent);
        }
        one.shut_down(lost);
        std::vector<std::byte> got(data.size());
        other.expect(context, data.size());
        for (std::size_t have = 0, passes = 0; passes < 1000; ++passes) {
            try {
                have += other.read(got.data() + have, data.size() - have, Stores::cached);
            } catch (const Error& error) {
                CHECK(error.kind() == ErrorKind::peer_lost);
                REQUIRE(error.ranks().size() == 1);
                return error.ranks().front();
            }
        }
        return -1;
    };
    for (const std::size_t sent : {std::size_t{0}, std::size_t{64 << 10}, std::size_t{Parts::size}}) {
        CAPTURE(sent);
        CHECK(blamed(sent, 2) == 2);
        CHECK(blamed(sent, std::nullopt) == 0);
        CHECK(blamed(sent, 1) == 0);  // that one knows better
    }
}

TEST_CASE("what is said as a farewell and can't be is not believed") {
    const auto heard = [](std::initializer_list<std::int32_t> said) {
        auto [here, there] = pair_of_sockets();
        REQUIRE(::send(there.get(), std::data(said), said.size() * 4, MSG_NOSIGNAL) ==
                static_cast<ssize_t>(said.size() * 4));
        there.reset();
        return Farewell(std::move(here)).hear();
    };
    constexpr std::int32_t magic = 0x57465950;
    CHECK(heard({magic, 3}) == 3);
    CHECK(heard({magic, -3}) == std::nullopt);
    CHECK(heard({3, 3}) == std::nullopt);
    CHECK(heard({magic}) == std::nullopt);
}

TEST_CASE("another operation's message is told from a late one, on every lane") {
    const auto data = random_bytes(2 * Parts::size, 10);
    const auto longer = random_bytes(3 * Parts::size, 10);
    const auto small = random_bytes(64, 10);
    for (const std::size_t lane : {0, 1}) {
        Half half(2);
        half.say(lane, operation(5), 1, 1, data);
        CHECK(kind_of([&] { take(half, operation(0), data.size(), false); }) == ErrorKind::desync);
    }
    Half long_one(2);
    long_one.say(1, operation(0), 1, 1, longer);
    CHECK(kind_of([&] { take(long_one, operation(0), data.size(), false); }) == ErrorKind::desync);
    Half parts_for_whole(2);
    parts_for_whole.say(0, operation(0), 1, 1, data);
    CHECK(kind_of([&] { take(parts_for_whole, operation(0), small.size(), false); }) == ErrorKind::desync);
    Half whole_for_parts(2);
    whole_for_parts.say(0, operation(0), 1, 0, small);
    CHECK(kind_of([&] { take(whole_for_parts, operation(0), data.size(), false); }) == ErrorKind::desync);
}

TEST_CASE("parts that cannot be are refused") {
    const Context context = operation(0);
    const auto data = random_bytes(2 * Parts::size, 11);
    const auto refused = [&](const std::function<void(Half&)>& said) {
        Half half(2);
        said(half);
        return kind_of([&] { take(half, context, data.size(), false); }) == ErrorKind::peer_lost;
    };
    const auto frame = [&](std::size_t lane, std::uint32_t part, std::uint32_t magic = frame_magic) {
        return [=, &context, &data](Half& half) {
            const Frame wrong{context.call, data.size(), magic, 1, part, 0};
            REQUIRE(::send(half.ends[lane].get(), &wrong, sizeof(wrong), MSG_NOSIGNAL) == sizeof(wrong));
        };
    };
    CHECK(refused(frame(0, 3)));
    CHECK(refused(frame(1, ~std::uint32_t{0})));
    CHECK(refused(frame(1, 0)));
    CHECK(refused(frame(1, 1, 12345)));
    CHECK(refused([&](Half& half) {
        half.say(0, context, 1, 1, data);
        half.say(1, context, 1, 1, data);
    }));
}
