// TwoEnds queue pairs of two RDMA devices, without a link: what is inline, and how long the send queue is.
#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "verbs/pair.hpp"

using namespace collectives;
using namespace collectives::verbs;
using namespace collectives::verbs::testing;

namespace {

// End 0 writes to the ring of end 1, which notices nothing.
struct TwoEnds {
    explicit TwoEnds(const std::array<Port, 2>& ports) {
        for (std::size_t i = 0; i < 2; ++i) {
            ends[i] = std::make_unique<OwnEnd>(Device::open(ports[i].device), ports[i], settings);
            described[i] = ends[i]->describe();
        }
        for (std::size_t i = 0; i < 2; ++i) ends[i]->queue->connect(described[1 - i], "the peer", settings);
    }
    // Without a key, so that the device cannot read the memory of these bytes.
    void write(std::span<const std::byte> bytes, bool is_signalled) {
        Write one;
        one.address = described[1].ring_address;
        one.key = described[1].ring_key;
        one.is_signalled = is_signalled;
        one.is_silent = true;
        one.add(bytes, 0);
        queue().post(one);
    }
    void poll() {
        queue().poll([](std::uint32_t, std::uint32_t) {});
    }
    bool is_over() {
        poll();
        return queue().is_flushed() || queue().failure() != nullptr;
    }
    QueuePair& queue() { return *ends[0]->queue; }
    std::span<const std::byte> there() const { return ends[1]->ring->bytes(); }

    Settings settings;
    std::array<std::unique_ptr<OwnEnd>, 2> ends;
    std::array<Endpoint, 2> described;
};

}  // namespace

TEST_CASE("work requests carry as many bytes as the queue pair has granted, and no more") {
    const auto ports = two_ports();
    if (!ports) return;
    TwoEnds pair(*ports);
    const std::size_t granted = pair.queue().inline_up_to();
    MESSAGE(ports->at(0).name() << " takes " << granted << " bytes inline");
    const auto sent = random_bytes(granted + 1, 30);
    auto data = sent;
    if (granted > 0) {
        pair.write(std::span(data).first(granted), true);
        std::ranges::fill(data, std::byte{0});
        REQUIRE(within(5, [&] { return pair.is_over(); }));
        REQUIRE(pair.queue().failure() == nullptr);
        CHECK(std::ranges::equal(std::span(sent).first(granted), pair.there().first(granted)));
    }
    pair.write(data, true);
    REQUIRE(within(5, [&] { return pair.is_over(); }));
    CHECK(pair.queue().failure() != nullptr);
}

TEST_CASE("a full send queue has a place again when a signalled request has completed") {
    const auto ports = two_ports();
    if (!ports) return;
    TwoEnds pair(*ports);
    const std::array<std::byte, 8> data{};
    REQUIRE(pair.queue().inline_up_to() >= data.size());
    for (int round = 0; round < 5; ++round) {
        while (pair.queue().has_place()) pair.write(data, false);  // one in `signal_every` is all the same
        REQUIRE(pair.queue().failure() == nullptr);
        CHECK(pair.queue().posted() - pair.queue().completed() == send_depth);
        REQUIRE(within(5, [&] { return pair.poll(), pair.queue().has_place(); }));
    }
    REQUIRE(within(5, [&] { return pair.is_over(); }));
    CHECK(pair.queue().failure() == nullptr);
    CHECK(pair.queue().posted() >= 5 * signal_every);
}
