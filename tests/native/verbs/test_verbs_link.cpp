// Links between two RDMA devices of this machine, both ends in one process: messages of all lengths.
#include <poll.h>

#include <array>
#include <optional>
#include <thread>
#include <vector>

#include "verbs/pair.hpp"

using namespace collectives;
using namespace collectives::verbs;
using namespace collectives::verbs::testing;

TEST_CASE("a short message is one work request, in either direction") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports);
    std::uint64_t sequence = 0;
    for (int i = 0; i < 1000; ++i) {
        for (const std::size_t n : {0, 1, 8, 64}) {
            for (const std::size_t from : {0, 1}) {
                const Context context = operation(++sequence);
                carry(*pair.ends[from], *pair.ends[1 - from], context, random_bytes(n, 1), i % 2 == 0);
            }
        }
    }
    for (const auto& end : pair.ends) {
        CHECK(end->posted().requests == 4000);
        CHECK(end->posted().reports == 0);  // credits go with the messages
        CHECK(end->posted().payload == 1000 * (1 + 8 + 64));
    }
}

TEST_CASE("messages of all lengths arrive, one after the other, and cost little more than their bytes") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports);
    std::uint64_t sequence = 0;
    for (const std::size_t n :
         {most_payload - 1, most_payload, most_payload + 1, ring_bytes, std::size_t{1000003}}) {
        for (const bool lends : {false, true}) {
            carry(*pair.ends[0], *pair.ends[1], operation(++sequence), random_bytes(n, 2), lends);
            carry(*pair.ends[1], *pair.ends[0], operation(++sequence), random_bytes(n, 3), !lends);
        }
    }
    const Posted before = pair.ends[0]->posted();
    const std::uint64_t sent_before = pair.ends[0]->bytes_sent();
    constexpr std::size_t large = 8 << 20;
    carry(*pair.ends[0], *pair.ends[1], operation(++sequence), random_bytes(large, 4), true);
    const Posted after = pair.ends[0]->posted();
    CHECK(after.payload - before.payload == large);
    CHECK(pair.ends[0]->bytes_sent() - sent_before < large * 1.03);
    CHECK(after.requests - before.requests == (large + most_payload - 1) / most_payload);
}

TEST_CASE("both directions at once, in small records") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports, {3 * unit_bytes, 3 * unit_bytes});
    const auto there = random_bytes(300'000, 5);
    const auto back = random_bytes(200'001, 6);
    const Context first = operation(1);
    const Context second = operation(2);
    Transfer one(*pair.ends[0], *pair.ends[1], first, there, true);
    Transfer two(*pair.ends[1], *pair.ends[0], second, back, false);
    REQUIRE(within(60, [&] {
        const bool first_done = one.step();
        return two.step() && first_done;
    }));
    CHECK(one.got == there);
    CHECK(two.got == back);
}

TEST_CASE("a long message goes from one array to the other without a copy, if it is not reduced") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports, {}, long_from);
    VerbsLink& from = *pair.ends[0];
    VerbsLink& to = *pair.ends[1];
    std::uint64_t sequence = 0;
    for (const std::size_t n : {long_from, piece_bytes + 1, std::size_t{3'000'001}}) {
        for (const bool lends : {false, true}) {
            auto data = random_bytes(n, 10);
            const Context context = operation(++sequence);
            Transfer transfer(from, to, context, data, lends);
            const Lasting source(data);
            const Lasting destination(transfer.got);
            const Posted before = from.posted();
            const Posted answers = to.posted();
            REQUIRE(within(20, [&] { return transfer.step(); }));
            CHECK(transfer.got == data);
            const Posted after = from.posted();
            CHECK(after.payload - before.payload == n);
            CHECK(after.straight - before.straight == (lends ? 0 : n));
            CHECK(after.copied == 0);
            CHECK(to.posted().copied == 0);
            CHECK(to.posted().grants == answers.grants + 1);
            const std::size_t piece = lends ? most_payload : piece_bytes;
            const std::uint64_t requests =
                after.requests - before.requests - (after.reports - before.reports);
            CHECK(requests == 1 + (n + piece - 1) / piece);
        }
    }
    CHECK(from.lost() == nullptr);
    CHECK(to.lost() == nullptr);
}

TEST_CASE("no work request is longer than the port allows") {
    auto ports = two_ports();
    if (!ports) return;
    constexpr std::uint32_t longest = 4096;
    for (Port& port : *ports) port.longest_message = longest;
    Pair pair(*ports, {}, long_from);
    std::uint64_t sequence = 0;
    for (const bool lends : {false, true}) {
        auto data = random_bytes(100'001, 32);
        const Context context = operation(++sequence);
        Transfer transfer(*pair.ends[0], *pair.ends[1], context, data, lends);
        const Lasting source(data);
        const Lasting destination(transfer.got);
        const Posted before = pair.ends[0]->posted();
        REQUIRE(within(20, [&] { return transfer.step(); }));
        CHECK(transfer.got == data);
        const Posted after = pair.ends[0]->posted();
        const std::size_t piece = lends ? longest - sizeof(RecordHead) : longest;
        const std::uint64_t requests = after.requests - before.requests - (after.reports - before.reports);
        CHECK(requests == 1 + (data.size() + piece - 1) / piece);
    }
}

TEST_CASE("a receiver that does not read holds the sender up, and nothing is lost") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports);
    const auto data = random_bytes(3 * ring_bytes, 7);
    const Context context = operation(1);
    VerbsLink& from = *pair.ends[0];
    VerbsLink& to = *pair.ends[1];
    REQUIRE(within(5, [&] {
        return to.lost() == nullptr && from.lost() == nullptr && from.queue().failure() == nullptr;
    }));
    Transfer transfer(from, to, context, data, false);
    std::size_t written = 0;
    REQUIRE(
        within(5, [&] { return (written += from.write(data.data() + written, data.size() - written)) > 0; }));
    const Deadline deadline(0.5);
    while (!deadline.passed()) written += from.write(data.data() + written, data.size() - written);
    CHECK(written <= ring_bytes);
    transfer.written_ = written;
    REQUIRE(within(20, [&] { return transfer.step(); }));
    CHECK(transfer.got == data);

    // The same with messages that take no space, but a receive each.
    int sent = 0;
    std::vector<Context> contexts;
    for (std::uint64_t i = 0; i < 2 * record_slots; ++i) contexts.push_back(operation(2 + i));
    const std::byte nothing{};
    const auto send_more = [&] {
        from.begin(contexts[static_cast<std::size_t>(sent)], 0);
        from.write(&nothing, 0);
        return from.finished();
    };
    while (send_more()) ++sent;
    CHECK(sent <= static_cast<int>(record_slots));
    CHECK(from.lost() == nullptr);
}

TEST_CASE("a sender that sleeps is woken when the receiver returns credits") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports);
    VerbsLink& from = *pair.ends[0];
    VerbsLink& to = *pair.ends[1];
    const auto data = random_bytes(3 * ring_bytes, 31);
    const Context context = operation(1);
    Transfer transfer(from, to, context, data, false);
    const auto write = [&] {
        transfer.written_ += from.write(data.data() + transfer.written_, data.size() - transfer.written_);
    };
    REQUIRE(within(5, [&] { return write(), transfer.written_ > 0; }));
    const Deadline full(0.5);
    while (!full.passed()) write();
    const std::size_t before = transfer.written_;
    REQUIRE(before < data.size());
    std::vector<pollfd> polled;
    while (from.arm(true, polled)) polled.clear();
    REQUIRE(::poll(polled.data(), polled.size(), 0) == 0);
    std::thread receiver([&] {
        CHECK(within(5, [&] {
            transfer.read_ += to.read(transfer.got.data() + transfer.read_,
                                      transfer.got.size() - transfer.read_, Stores::cached);
            return to.posted().reports > 0;
        }));
    });
    CHECK(::poll(polled.data(), polled.size(), 5000) == 1);
    receiver.join();
    REQUIRE(within(5, [&] { return write(), transfer.written_ > before; }));
    REQUIRE(within(20, [&] { return transfer.step(); }));
    CHECK(transfer.got == data);
}

TEST_CASE("a rank that sleeps is woken by a message") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports);
    VerbsLink& from = *pair.ends[0];
    VerbsLink& to = *pair.ends[1];
    carry(from, to, operation(1), random_bytes(8, 1), false);
    for (std::uint64_t i = 2; i < 50; ++i) {
        const Context context = operation(i);
        to.expect(context, 8);
        std::vector<pollfd> polled;
        while (to.arm(false, polled)) polled.clear();
        REQUIRE(::poll(polled.data(), polled.size(), 0) == 0);
        std::thread sender([&] {
            const std::array<std::byte, 8> data{};
            from.begin(context, 8);
            CHECK(
                within(5, [&] { return from.finished() || (from.write(data.data(), 8), from.finished()); }));
        });
        CHECK(::poll(polled.data(), polled.size(), 5000) == 1);
        sender.join();
        std::array<std::byte, 8> got{};
        REQUIRE(within(5, [&] { return to.read(got.data(), 8, Stores::cached) == 8; }));
    }
}

TEST_CASE("another operation at the other end is found before anything is read") {
    const auto ports = two_ports();
    if (!ports) return;
    Pair pair(*ports);
    const Context mine = operation(1);
    const Context theirs = operation(2);
    const std::array<std::byte, 8> data{};
    pair.ends[0]->begin(theirs, 8);
    pair.ends[1]->expect(mine, 8);
    std::optional<ErrorKind> kind;
    CHECK(within(5, [&] {
        pair.ends[0]->write(data.data(), pair.ends[0]->finished() ? 0 : 8);
        try {
            pair.ends[1]->ready(1);
        } catch (const Error& error) {
            kind = error.kind();
        }
        return kind.has_value();
    }));
    CHECK(kind == ErrorKind::desync);
}
