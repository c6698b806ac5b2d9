#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string_view>

#include "base/error.hpp"
#include "link/offer.hpp"
#include "verbs/endpoint.hpp"
#include "verbs/ring.hpp"

using namespace collectives;
using namespace collectives::verbs;

namespace {

Port port_of(std::uint8_t layer) {
    Port port;
    port.device = "mlx5_0";
    port.layer = layer;
    port.mtu = 5;
    port.gid[15] = 1;
    return port;
}

constexpr std::size_t longest = 1024;

Endpoint possible() {
    Endpoint end = describe(port_of(abi::layer_ethernet));
    end.queue_pair = 17;
    end.first_packet = 0xffffff;
    end.ring_address = 4096;
    end.ring_units = 64;
    end.ring_key = 1;
    end.slots = 8;
    return end;
}

std::string refusal(const Endpoint& end) {
    try {
        check(end, port_of(abi::layer_ethernet), longest, "rank 1");
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::transport_unavailable);
        return error.what();
    }
    return "";
}

}  // namespace

TEST_CASE("an endpoint arrives as it was offered, and is possible") {
    const Offer offer = Offer::of(endpoint_version, possible());
    const PeerOffer received{offer.version, offer.bytes, {}, {}};
    const auto end = received.as<Endpoint>(endpoint_version);
    CHECK(end.queue_pair == 17);
    CHECK(end.port_name() == "mlx5_0 port 1");
    CHECK(refusal(end).empty());
    CHECK_THROWS_AS(received.as<Endpoint>(endpoint_version + 1), Error);
    CHECK_THROWS_AS(received.as<std::uint64_t>(endpoint_version), Error);
}

TEST_CASE("offers that no rank makes are refused") {
    const std::vector<std::function<void(Endpoint&)>> spoil{
        [](Endpoint& end) { end.queue_pair = 1 << 24; },
        [](Endpoint& end) { end.first_packet = 1 << 24; },
        [](Endpoint& end) { end.ring_address = 0; },
        [](Endpoint& end) { end.ring_address = 4097; },
        [](Endpoint& end) { end.ring_address = ~std::uint64_t{0} - 63; },
        [](Endpoint& end) { end.ring_units = 0; },
        [](Endpoint& end) { end.ring_units = 63; },
        [](Endpoint& end) { end.ring_units = 32; },  // room for two of the longest records only
        [](Endpoint& end) { end.ring_units = std::uint64_t{1} << 40; },
        [](Endpoint& end) { end.slots = 0; },
        [](Endpoint& end) { end.slots = 1 << 30; },
        [](Endpoint& end) { end.mtu = 0; },
        [](Endpoint& end) { end.mtu = 6; },
        [](Endpoint& end) { end.port = 0; },
        [](Endpoint& end) { end.gid = {}; },
    };
    for (const auto& change : spoil) {
        Endpoint end = possible();
        change(end);
        CHECK(refusal(end).find("rank 1 made an offer") != std::string::npos);
    }
}

TEST_CASE("ports of two kinds are told apart") {
    Endpoint end = possible();
    end.layer = abi::layer_infiniband;
    const std::string why = refusal(end);
    CHECK(why.find("Ethernet") != std::string::npos);
    CHECK(why.find("InfiniBand") != std::string::npos);
    CHECK(why.find("rank 1") != std::string::npos);
}

TEST_CASE("the name of a peer's device is printed without what is not a letter") {
    Endpoint end = possible();
    end.device = {};
    std::ranges::copy(std::string_view("a\x1b\nb\x80"), end.device.begin());
    CHECK(end.port_name() == "ab port 1");
    end.device.fill('x');  // without an end
    CHECK(end.port_name() == "xxxxxxxxxxxxxxxxxxxxxxxxxx port 1");
}

TEST_CASE("addresses are ordered by how far they reach") {
    const abi::Gid local{0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1};
    const abi::Gid global{0x20, 0x01, 0x0d, 0xb8};
    const abi::Gid mapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1};
    CHECK(reach(mapped, abi::gid_roce_v2) > reach(global, abi::gid_roce_v2));
    CHECK(reach(global, abi::gid_roce_v2) > reach(local, abi::gid_roce_v2));
    CHECK(reach(local, abi::gid_roce_v2) > reach(mapped, abi::gid_roce_v1));
    CHECK(reach(mapped, abi::gid_roce_v1) > reach(local, abi::gid_roce_v1));
    CHECK(text(mapped) == "::ffff:10.77.0.1");
}

TEST_CASE("a device is wished for by name, port and index") {
    CHECK(parse_wish("").device.empty());
    CHECK(parse_wish("mlx5_0").device == "mlx5_0");
    CHECK(parse_wish("mlx5_0").port == -1);
    CHECK(parse_wish("mlx5_0:2").port == 2);
    CHECK(parse_wish("mlx5_0:2:3").gid_index == 3);
    CHECK(parse_wish("mlx5_0:2:255").gid_index == 255);
    CHECK_THROWS_WITH_AS(parse_wish("mlx5_0:2:256"), doctest::Contains("up to 255"), Error);
    for (const char* const wrong : {"a:", "a:b", "a:1:", "a:1:x", "a:-1", "a:1:2:3"}) {
        CHECK_THROWS_AS(parse_wish(wrong), Error);
    }
}

TEST_CASE("addresses of two kinds are told apart before packets get lost") {
    const std::vector<std::function<void(Endpoint&)>> change{
        [](Endpoint& end) { end.gid_type = abi::gid_roce_v1; },
        [](Endpoint& end) { end.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1}; },
    };
    for (const auto& other : change) {
        Endpoint end = possible();
        other(end);
        const std::string why = refusal(end);
        CHECK(why.find("mlx5_0 port 1 of rank 1") != std::string::npos);
        CHECK(why.find("addresses of one kind") != std::string::npos);
    }
}

TEST_CASE("several ports are wished for with commas between them") {
    CHECK(parse_wishes("").empty());
    const std::vector<Wish> found = parse_wishes("mlx5_0:2,mlx5_1");
    REQUIRE(found.size() == 2);
    CHECK(found[0].device == "mlx5_0");
    CHECK(found[0].port == 2);
    CHECK(found[1].device == "mlx5_1");
    CHECK_THROWS_AS(parse_wishes("mlx5_0,mlx5_1:x"), Error);
}
