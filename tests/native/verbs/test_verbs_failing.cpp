// Links between two RDMA devices that end, in order or not: what is raised, and when nothing is written any
// more.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "verbs/pair.hpp"

using namespace collectives;
using namespace collectives::verbs;
using namespace collectives::verbs::testing;

TEST_CASE("a peer writes no further than it was granted, and nothing after the connection has ended") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports, {}, long_from);
    VerbsLink& from = *pair.ends[0];
    VerbsLink& to = *pair.ends[1];
    auto data = random_bytes(1 << 20, 12);
    std::vector<std::byte> got(data.size());
    const Lasting source(data);
    const Lasting destination(got);
    const Context context = operation(1);
    from.begin(context, data.size());
    to.expect(context, data.size());
    const std::size_t first = 100'000;
    std::size_t written = 0;
    std::size_t read = 0;
    const auto step = [&](std::size_t up_to) {
        written += from.write(data.data() + written, data.size() - written);
        from.released();
        read += to.read(got.data() + read, up_to - read, Stores::cached);
    };
    const auto is_clean = [&](std::size_t begin) {
        return std::all_of(got.begin() + static_cast<std::ptrdiff_t>(begin), got.end(),
                           [](std::byte one) { return one == std::byte{0}; });
    };
    REQUIRE(within(5, [&] { return step(first), read == first; }));
    const Deadline deadline(0.2);
    while (!deadline.passed()) step(first);
    CHECK(written == first);
    CHECK(is_clean(first));
    // More may come now, but the operation fails first.
    const std::uint64_t grants = to.posted().grants;
    REQUIRE(within(5, [&] {
        read += to.read(got.data() + read, data.size() - 1 - read, Stores::cached);
        return to.posted().grants > grants;
    }));
    CHECK(to.quiesce());
    const std::vector<std::byte> then = got;
    const Deadline watched(0.5);
    while (!watched.passed()) from.write(data.data() + written, 1), from.released();
    CHECK(got == then);
    CHECK(to.lost() != nullptr);
}

TEST_CASE("giving up on several peers that do not answer takes no longer than on one") {
    const auto ports = two_ports();
    if (!ports) return;
    GivingUp giving_up;
    std::vector<std::unique_ptr<Pair>> pairs;
    std::vector<std::byte> data = random_bytes(1 << 20, 12);
    std::vector<std::byte> got(data.size());
    const Context context = operation(1);
    for (int i = 0; i < 4; ++i) {
        const auto& pair = pairs.emplace_back(
            std::make_unique<Pair>(*ports, Pieces{}, long_from, [](Endpoint&) {}, &giving_up));
        VerbsLink& from = *pair->ends[0];
        VerbsLink& to = *pair->ends[1];
        from.begin(context, data.size());
        to.expect(context, data.size());
        REQUIRE(within(5, [&] {
            to.read(got.data(), got.size(), Stores::cached);
            return from.lost() == nullptr && from.queue().taken_up() > 0;
        }));
        CHECK(to.quiesce());  // its queue pair ends, and its socket stays open
        REQUIRE(within(5, [&] { return from.write(data.data(), data.size()) > 0; }));
    }
    const auto begun = Clock::now();
    for (const auto& pair : pairs) {
        CHECK(pair->ends[0]->quiesce());
        CHECK(pair->ends[0]->queue().failure() != nullptr);
    }
    CHECK(Clock::now() - begun < std::chrono::milliseconds(700));
}

TEST_CASE("a write that the peer's device refuses is an error at both ends, which names the ports") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports, {}, never, [](Endpoint& theirs) { theirs.ring_key ^= 1; });
    VerbsLink& from = *pair.ends[0];
    VerbsLink& to = *pair.ends[1];
    const Context context = operation(1);
    const std::array<std::byte, 8> data{};
    from.begin(context, data.size());
    REQUIRE(within(10, [&] {
        if (!from.finished()) from.write(data.data(), data.size());
        const bool is_lost_there = to.lost() != nullptr;
        return from.lost() != nullptr && is_lost_there;
    }));
    const std::string here = from.lost();
    CHECK(here.find("remote access error") != std::string::npos);
    CHECK(here.find(ports->at(0).name()) != std::string::npos);
    CHECK(here.find(ports->at(1).name() + " of rank 1") != std::string::npos);
    CHECK(std::string(to.lost()).find(ports->at(1).name()) != std::string::npos);
    CHECK(from.path() == ports->at(0).name() + " to " + ports->at(1).name());
}

TEST_CASE("a rank that only waits finds that the peer's queue pair is gone, without a word from its socket") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports, {}, long_from);
    VerbsLink& waits = *pair.ends[0];
    VerbsLink& other = *pair.ends[1];
    const auto both_work = [&] {
        const char* const one = waits.lost();
        return one == nullptr && other.lost() == nullptr;
    };
    const Context context = operation(1);
    waits.expect(context, 8);
    const Deadline idle(2.5);
    while (!idle.passed()) REQUIRE(both_work());
    CHECK(waits.posted().probes >= 1);
    CHECK(waits.posted().probes <= 2);
    CHECK(waits.posted().requests == 0);
    // It has permitted a write that does not come, so giving up ends the connection; its socket stays open.
    std::vector<std::byte> got(1 << 20);
    other.expect(context, got.size());
    REQUIRE(within(5, [&] {
        other.read(got.data(), got.size(), Stores::cached);
        return other.posted().grants > 0;
    }));
    while (waits.queue().taken_up() < waits.posted().probes + 1) REQUIRE(waits.lost() == nullptr);
    CHECK(other.quiesce());
    REQUIRE(other.lost() != nullptr);
    const auto begun = Clock::now();
    REQUIRE(within(12, [&] { return waits.lost() != nullptr; }));
    CHECK(Clock::now() - begun < std::chrono::seconds(9));
    CHECK(waits.posted().requests == 0);
    const std::string why = waits.lost();
    CHECK(why.find(ports->at(1).name() + " of rank 1") != std::string::npos);
}

TEST_CASE("what was sent before a link was closed arrives, and then the peer is gone") {
    const auto ports = two_ports();
    if (!ports) return;
    for (const int lost : {-1, 7}) {
        Pair pair(*ports);
        const auto data = random_bytes(200'000, 8);  // enough for the receiver to return credits
        const Context context = operation(1);
        VerbsLink& from = *pair.ends[0];
        VerbsLink& to = *pair.ends[1];
        from.begin(context, data.size());
        std::size_t written = 0;
        REQUIRE(within(5, [&] {
            written += from.write(data.data() + written, data.size() - written);
            return from.finished();
        }));
        from.shut_down(lost < 0 ? std::nullopt : std::optional(lost));
        pair.ends[0].reset();
        to.expect(context, data.size());
        std::vector<std::byte> got(data.size());
        std::size_t read = 0;
        REQUIRE(within(5, [&] {
            read += to.read(got.data() + read, got.size() - read, Stores::cached);
            return read == got.size();
        }));
        CHECK(got == data);
        REQUIRE(within(5, [&] { return to.lost() != nullptr; }));
        CHECK(std::string(to.lost()) == "it closed the communicator");
        const Deadline fails(lost < 0 ? 3.0 : 0.0);  // what is sent to the peer now fails before that
        while (!fails.passed()) CHECK(std::string(to.lost()) == "it closed the communicator");
        CHECK(to.queue().failure() == nullptr);
        CHECK(to.posted().requests == 0);
        try {
            to.throw_lost(context.call, to.lost());
        } catch (const Error& error) {
            CHECK(error.ranks() == std::vector<int>{lost < 0 ? 0 : lost});
        }
    }
}

TEST_CASE("a peer whose queue pair is gone is an error within seconds, which names the ports") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports);
    VerbsLink& from = *pair.ends[0];
    carry(from, *pair.ends[1], operation(1), random_bytes(8, 9), false);
    // Its socket stays open in this process, so that only the queue pair tells.
    const int kept = ::dup(0);
    pair.ends[1].reset();
    const Context context = operation(2);
    const std::array<std::byte, 8> data{};
    from.begin(context, 8);
    from.write(data.data(), 8);
    REQUIRE(from.lost() != nullptr);  // the socket tells at once
    CHECK(std::string(from.lost()).find(from.path()) != std::string::npos);
    ::close(kept);
    const auto begun = std::chrono::steady_clock::now();
    REQUIRE(within(10, [&] {
        from.lost();
        return from.queue().failure() != nullptr;
    }));
    CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(8));
    const std::string why = from.queue().failure();
    CHECK(why.find(ports->at(0).name()) != std::string::npos);
    CHECK(why.find(ports->at(1).name() + " of rank 1") != std::string::npos);
}
