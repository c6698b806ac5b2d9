// Transports by name, and what a rank offers to others of its process.
#include "groups.hpp"
#include "link/ports.hpp"
#include "link/registry.hpp"

using namespace collectives;
using namespace collectives::testing;

TEST_CASE("an unknown transport is refused with those that there are") {
    Group group(options(0, 2));
    for (const auto& use : std::vector<std::function<void()>>{
             [&] { group.links().listen("pigeon", UniqueFd()); },
             [&] { group.links().accept("pigeon"); },
             [&] { group.links().listen_in_process("pigeon"); },
             [&] { group.links().route(1, "pigeon", {"loft"}, "host"); },
             [] { why_no_room("pigeon", 2, 0); },
         }) {
        const std::optional<Error> error = error_of(use);
        REQUIRE(error.has_value());
        CHECK(error->kind() == ErrorKind::transport_unavailable);
        CHECK(std::string(error->what()).find("'pigeon'") != std::string::npos);
        for (const std::string& name : registered_transports()) {
            CHECK(std::string(error->what()).find(name) != std::string::npos);
        }
    }
}

TEST_CASE("a name stands for one transport") {
    REQUIRE(!registered_transports().empty());
    const std::string taken = registered_transports().front();
    const std::optional<Error> error = error_of([&] { register_transport(taken, {}); });
    REQUIRE(error.has_value());
    CHECK(error->kind() == ErrorKind::invalid);
}

TEST_CASE("an offer within a process is found by its transport only, until its address is closed") {
    const auto object = std::make_shared<int>(7);
    const std::string address = ports::open("one", {3, {}, {}, object});
    CHECK(!ports::find("other", address));
    CHECK(!ports::find("one", address + "0"));
    const auto found = ports::find("one", address);
    REQUIRE(found.has_value());
    CHECK(found->version == 3);
    CHECK(found->object == object);
    ports::close(address);
    CHECK(!ports::find("one", address));
}

TEST_CASE("an offer of another version or size is not taken for one of ours") {
    const Offer offer = Offer::of(2, std::uint64_t{5});
    const PeerOffer theirs{offer.version, offer.bytes, {}, {}};
    CHECK(theirs.as<std::uint64_t>(2) == 5);
    CHECK(error_of([&] { theirs.as<std::uint64_t>(1); }).has_value());
    CHECK(error_of([&] { theirs.as<std::uint32_t>(2); }).has_value());
}
