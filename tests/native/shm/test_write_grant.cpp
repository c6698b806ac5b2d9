#include <doctest/doctest.h>

#include <array>
#include <cstdint>

#include "shm/remote.hpp"
#include "shm/write_grant.hpp"

using collectives::Reads;
using collectives::Remote;
using collectives::WriteGrant;

TEST_CASE("memory is written to by a grant until it is revoked") {
    if (Remote::ours() == Reads::never) {
        MESSAGE("skipped: COLLECTIVES_PULL forbids it");
        return;
    }
    std::array<std::byte, 64> there{};
    const auto address = reinterpret_cast<std::uintptr_t>(there.data());
    const std::array<std::byte, 64> data{std::byte{1}};
    WriteGrant grant;
    for (int i = 0; i < 50; ++i) {
        there.fill(std::byte{0});
        const pid_t id = grant.id();
        REQUIRE(id > 0);
        CHECK(grant.id() == id);
        CHECK(Remote(id).write(data.data(), address, data.size()));
        CHECK(there == data);
        grant.revoke();
        there.fill(std::byte{0});
        CHECK_FALSE(Remote(id).write(data.data(), address, data.size()));
        CHECK(there.front() == std::byte{0});
    }
    grant.revoke();  // once is enough
}
