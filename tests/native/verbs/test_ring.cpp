#include <doctest/doctest.h>

#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "verbs/ring.hpp"

using namespace collectives::verbs;

namespace {

constexpr std::uint64_t size = 64;  // units
constexpr std::uint64_t slots = 16;

}  // namespace

TEST_CASE("a record lies in one piece") {
    CHECK(position_after(0, 8, size) == 0);
    CHECK(position_after(56, 8, size) == 56);
    CHECK(position_after(57, 8, size) == 64);
    CHECK(position_after(64 + 60, 5, size) == 128);
}

TEST_CASE("an immediate says what was put into it, modulo its range") {
    for (const Immediate said :
         {Immediate{Carried::record, 5, 7}, Immediate{Carried::credits, 0, 0},
          Immediate{Carried::piece, 1, 0},
          Immediate{Carried::grant, Immediate::space_range - 1, Immediate::slot_range - 1}}) {
        const Immediate heard = Immediate::decode(said.encode());
        CHECK(heard.carried == said.carried);
        CHECK(heard.space == said.space);
        CHECK(heard.slots == said.slots);
    }
    const Immediate wrapped =
        Immediate::decode(Immediate{Carried::record, Immediate::space_range + 3, 0}.encode());
    CHECK(wrapped.space == 3);
}

TEST_CASE("a sender has no more in use than it was granted") {
    SendRing ring(size, slots);
    int records = 0;
    while (ring.take(4 * unit_bytes)) ++records;
    CHECK(records == 16);  // 16 * 4 units

    SendRing narrow(size, 3);
    records = 0;
    while (narrow.take(1)) ++records;
    CHECK(records == 3);
}

TEST_CASE("credits that were not in use are refused") {
    SendRing ring(size, slots);
    CHECK(!ring.credit({Carried::credits, 1, 0}));
    CHECK(!ring.credit({Carried::credits, 0, 1}));
    REQUIRE(ring.take(2 * unit_bytes));
    CHECK(!ring.credit({Carried::credits, 3, 0}));
    CHECK(!ring.credit({Carried::credits, 2, 2}));
    CHECK(ring.credit({Carried::credits, 2, 1}));
    CHECK(!ring.credit({Carried::credits, 1, 1}));  // less than before
    CHECK(ring.credit({Carried::credits, 2, 1}));
}

TEST_CASE("a receiver refuses what does not fit into the space that is free") {
    ReceiveRing ring(size, slots);
    CHECK(!ring.arrive(0));
    CHECK(!ring.arrive(size * unit_bytes + 1));
    CHECK(ring.arrive(size * unit_bytes));
    CHECK(!ring.arrive(1));
    ring.consume(size * unit_bytes);
    CHECK(ring.arrive(1));
}

TEST_CASE("both ends agree for ever, whatever the sizes, and few reports are under way") {
    SendRing out(size, slots);
    ReceiveRing in(size, slots);
    std::mt19937 random(1);
    std::deque<std::pair<std::uint64_t, std::size_t>> in_ring;  // records that were not consumed
    std::deque<Immediate> reports;                              // that the sender has not read
    std::vector<bool> used(size, false);
    std::size_t most_reports = 0;
    std::uint64_t pending_receives = 0;
    std::uint64_t sent = 0;
    for (int step = 0; step < 2'000'000; ++step) {
        const auto dice = random() % 4;
        if (dice == 0) {  // the sender polls, and sends all that it can
            for (const Immediate& said : reports) REQUIRE(out.credit(said));
            reports.clear();
        } else if (dice == 1) {
            const std::size_t bytes = 1 + random() % (8 * unit_bytes);
            const auto position = out.take(bytes);
            if (!position) continue;
            ++sent;
            const std::uint64_t first = out.offset(*position) / unit_bytes;
            REQUIRE(first + units(bytes) <= size);
            for (std::uint64_t i = first; i < first + units(bytes); ++i) {
                REQUIRE(!used[i]);  // nothing unread is overwritten
                used[i] = true;
            }
            REQUIRE(in.arrive(bytes));
            in_ring.emplace_back(*position, bytes);
            ++pending_receives;
            if (random() % 4 == 0 && out.take_slot()) {  // a grant, or a piece
                in.arrive();
                ++pending_receives;
            }
        } else if (dice == 2 && !in_ring.empty()) {
            const auto [position, bytes] = in_ring.front();
            in_ring.pop_front();
            REQUIRE(in.next(bytes) == position);
            const std::uint64_t first = in.offset(position) / unit_bytes;
            for (std::uint64_t i = first; i < first + units(bytes); ++i) used[i] = false;
            in.consume(bytes);
        } else if (dice == 3) {
            in.repost(pending_receives);
            pending_receives = 0;
        }
        if (in.is_due()) reports.push_back(Immediate::decode(in.tell(Carried::credits).encode()));
        most_reports = std::max(most_reports, reports.size());
    }
    CHECK(sent > 100'000);  // the ring was gone round many times, and the fields of immediates wrapped
    CHECK(most_reports <= reports_under_way);
    CHECK(most_reports > 1);
}

TEST_CASE("a sender that waits is not forgotten") {
    // The longest records, of an eighth of the ring, as links have them.
    SendRing out(size, slots);
    ReceiveRing in(size, slots);
    for (int round = 0; round < 1000; ++round) {
        std::vector<std::size_t> sizes;
        for (std::size_t bytes = 1; out.take(bytes);
             bytes = 1 + (bytes * 7 + static_cast<std::size_t>(round)) % 512) {
            sizes.push_back(bytes);
            REQUIRE(in.arrive(bytes));
        }
        bool told = false;
        for (const std::size_t bytes : sizes) {
            in.consume(bytes);
            in.repost(1);
            if (!in.is_due()) continue;
            told = true;
            REQUIRE(out.credit(Immediate::decode(in.tell(Carried::credits).encode())));
        }
        CHECK(told);
    }
}
