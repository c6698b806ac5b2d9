// Two ends of a link in shared memory: messages arrive whole, in places that change hands as long as there
// are some, and a line that gives away what it may not is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "data.hpp"
#include "shm/link.hpp"
#include "shm/places.hpp"

using namespace collectives;
using namespace collectives::testing;

namespace {

Geometry geometry(std::size_t slot_bytes) {
    Geometry geometry;
    geometry.size = 2;
    geometry.slot_bytes = slot_bytes;
    geometry.staging_bytes = 2 * slot_bytes;
    geometry.heap_bytes = 1 << 20;
    return geometry;
}

// A rank with its arena, and the peer's as it maps that.
struct Side {
    std::shared_ptr<Arena> own;
    std::shared_ptr<Arena> theirs;
    std::unique_ptr<ShmLink> link;

    // Of that byte, in the arena in which it lies.
    std::size_t offset(const std::byte* data) const {
        const std::shared_ptr<Arena>& arena = lies_in(*own, data) ? own : theirs;
        return arena->offset_of(data);
    }
    static bool lies_in(const Arena& arena, const std::byte* data) {
        const auto* const begin = reinterpret_cast<const std::byte*>(&arena.header());
        return data >= begin && data < begin + arena.geometry().total();
    }
};

// Where a message was found.
struct Found {
    bool in_own;         // the receiver's own arena
    bool in_place;       // not in staging memory
    std::size_t offset;  // in that arena
};

// Both are driven by one thread.
struct Pair {
    explicit Pair(std::size_t slot_bytes) {
        for (Side& side : sides) side.own = Arena::create_shared(geometry(slot_bytes));
        for (int rank : {0, 1}) {
            Side& side = sides[rank];
            const Arena& peer = *sides[1 - rank].own;
            side.theirs = Arena::map(peer.fd(), peer.geometry(), peer.header().cookie, UniqueFd());
            side.link = std::make_unique<ShmLink>(Peer{1 - rank, "here"}, rank, side.own, side.theirs);
        }
        carriage.placed_up_to = ~std::uint64_t{0};
        carry();
    }

    void carry() {
        for (Side& side : sides) side.link->fix_carriage(carriage);
    }

    // Give `data` to `from`'s link; as much of it as goes into it at once.
    void send(int from, const std::vector<std::byte>& data) {
        ShmLink& link = *sides[from].link;
        link.begin(context, data.size());
        std::size_t sent = 0;
        while (sent < data.size()) {
            const std::size_t n = link.write(data.data() + sent, data.size() - sent);
            REQUIRE(n > 0);
            sent += n;
        }
        REQUIRE(link.finished());
    }

    Found receive(int to, const std::vector<std::byte>& data) {
        Side& side = sides[to];
        side.link->expect(context, data.size());
        const std::span<const std::byte> first = side.link->lend(1);
        REQUIRE_FALSE(first.empty());
        const bool in_own = Side::lies_in(*side.own, first.data());
        Arena& arena = in_own ? *side.own : *side.theirs;
        const int other = in_own ? 1 - to : to;
        const Found found{in_own, first.data() >= arena.place(other, 0), arena.offset_of(first.data())};
        std::vector<std::byte> got(data.size());
        REQUIRE(side.link->read(got.data(), got.size(), Stores::cached) == got.size());
        REQUIRE(side.link->received());
        REQUIRE(same(got, data));
        return found;
    }

    bool is_done(int side) const { return sides[side].link->finished() && sides[side].link->received(); }

    std::array<Side, 2> sides;
    Context context;
    Carriage carriage;
};

}  // namespace

TEST_CASE("both sides know a place by the same number, and none lies in another or in staging memory") {
    for (const std::size_t slot : {std::size_t{100}, page_size, std::size_t{128} << 10}) {
        const Pair pair(slot);
        const auto& [low, high] = pair.sides;
        const Places here(*low.own, 0, *low.theirs, 1);
        const Places there(*high.own, 1, *high.theirs, 0);
        for (std::uint32_t i = 0; i < 2 * places_per_link; ++i) {
            CAPTURE(i);
            CHECK(Side::lies_in(*low.own, here.at(i)) == (i < places_per_link));
            CHECK(Side::lies_in(*high.own, there.at(i)) == (i >= places_per_link));
            CHECK(low.offset(here.at(i)) == high.offset(there.at(i)));
            std::memset(here.at(i), static_cast<int>(i + 1), 2 * slot);
        }
        std::memset(low.own->staging(1), 0xff, low.own->geometry().link_staging());
        std::memset(high.own->staging(0), 0xff, high.own->geometry().link_staging());
        for (std::uint32_t i = 0; i < 2 * places_per_link; ++i) {
            CHECK(std::vector(there.at(i), there.at(i) + 2 * slot) ==
                  std::vector(2 * slot, static_cast<std::byte>(i + 1)));
        }
    }
}

TEST_CASE("an answer lies where the message before it was read") {
    Pair pair(128 << 10);
    const std::vector<std::byte> data = random_bytes(100'000, 1);
    pair.send(0, data);
    const Found first = pair.receive(1, data);
    CHECK(first.in_place);
    CHECK_FALSE(first.in_own);
    for (int i = 0; i < 5; ++i) {
        for (const int from : {1, 0}) {
            pair.send(from, data);
            const Found next = pair.receive(1 - from, data);
            CHECK(next.in_own == (from == 1));
            CHECK(next.offset == first.offset);
        }
    }
}

TEST_CASE("who has given all places away goes on in staging memory, and nothing unread is overwritten") {
    Pair pair(64 << 10);
    std::vector<std::vector<std::byte>> messages;
    for (int i = 0; i < static_cast<int>(places_per_link) + 3; ++i) {
        messages.push_back(random_bytes(50'000, static_cast<unsigned>(i)));
        pair.send(0, messages.back());
    }
    const std::vector<std::byte> other = random_bytes(50'000, 99);
    pair.send(1, other);
    CHECK(pair.receive(0, other).in_place);
    for (std::size_t i = 0; i < messages.size(); ++i) {
        CHECK(pair.receive(1, messages[i]).in_place == (i < places_per_link));
    }
    // All but the one that it has given away belong to the other side now.
    for (std::size_t i = 0; i < 2 * places_per_link - 1; ++i) {
        pair.send(1, other);
        CHECK(pair.receive(0, other).in_place);
    }
}

TEST_CASE("messages of all lengths, to both sides at once or to one") {
    std::mt19937 random(7);
    for (const std::size_t slot : {std::size_t{1}, std::size_t{100}, page_size, std::size_t{128} << 10}) {
        Pair pair(slot);
        for (int round = 0; round < fewer(100); ++round) {
            CAPTURE(slot);
            CAPTURE(round);
            std::array<std::vector<std::byte>, 2> sent;
            std::array<std::vector<std::byte>, 2> got;
            for (const int from : {0, 1}) {
                const std::size_t n = random() % 3 == 0 ? 0 : random() % (12 * slot + 5000);
                sent[from] = random_bytes(n, static_cast<unsigned>(round));
                got[1 - from].resize(n);
                pair.sides[from].link->begin(pair.context, n);
                pair.sides[1 - from].link->expect(pair.context, n);
            }
            std::array<std::size_t, 2> written{};
            std::array<std::size_t, 2> read{};
            while (!(pair.is_done(0) && pair.is_done(1))) {
                const std::size_t side = random() % 2;
                ShmLink& link = *pair.sides[side].link;
                const std::size_t left = sent[side].size() - written[side];
                if (!link.finished()) written[side] += link.write(sent[side].data() + written[side], left);
                const std::size_t more =
                    std::min<std::size_t>(got[side].size() - read[side], random() % 9000);
                read[side] += link.read(got[side].data() + read[side], more, Stores::cached);
            }
            for (const int from : {0, 1}) REQUIRE(same(got[1 - from], sent[from]));
        }
    }
}

TEST_CASE("a place that was not the sender's is refused") {
    const auto of_receiver = static_cast<std::uint32_t>(places_per_link) + 1;
    for (const std::uint32_t said :
         {of_receiver, std::uint32_t{2 * places_per_link + 1}, ~std::uint32_t{0}}) {
        CAPTURE(said);
        Pair pair(64 << 10);
        const std::vector<std::byte> data = random_bytes(50'000, 1);
        pair.send(0, data);
        pair.sides[0].own->outlet(1).lines[1].slice.place = said;
        ShmLink& link = *pair.sides[1].link;
        link.expect(pair.context, data.size());
        CHECK_THROWS_WITH_AS(link.lend(1), doctest::Contains("another length"), Error);
    }
}

TEST_CASE("a message that is too long for places, or too short, does not take one") {
    Pair pair(64 << 10);
    pair.carriage.placed_up_to = 60'000;
    pair.carry();
    for (const auto& [n, placed] : {std::pair{page_size - 1, false},
                                    {page_size, true},
                                    {std::size_t{60'000}, true},
                                    {std::size_t{60'001}, false}}) {
        CAPTURE(n);
        const std::vector<std::byte> data = random_bytes(n, 3);
        pair.send(0, data);
        CHECK(pair.receive(1, data).in_place == placed);
    }
}
