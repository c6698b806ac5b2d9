// A peer that goes on with what a failed operation left it in the middle of: it reaches no memory of the
// caller's.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <optional>

#include "groups.hpp"
#include "shm/arena_of.hpp"
#include "shm/link.hpp"
#include "shm/memory.hpp"

using namespace collectives;
using namespace collectives::testing;

namespace {

constexpr std::size_t n = 300'000;  // floats
constexpr std::size_t bytes = n * sizeof(float);

// Links for what follows: a whole operation.
void link_up(World& world) {
    const int size = static_cast<int>(world.ranks.size());
    world.each([&](int rank, Group& group) {
        std::vector<float> x = values(rank, 100);
        std::vector<float> y(100);
        group.run(sum_of_floats(two_shot(rank, size), 100), raw(x), raw(y), 30.0, {});
    });
}

ShmLink& shm(World& world, int rank, int peer) {
    const Group& group = *world.ranks[static_cast<std::size_t>(rank)];
    ShmLink* const link = group.commons().find<GroupMemory>()->link(peer);
    REQUIRE(link != nullptr);
    return *link;
}

}  // namespace

TEST_CASE("a result that comes after the deadline reaches nobody") {
    for (const bool in_background : {false, true}) {
        for (const int size : {2, 3}) {
            World world(size, "shm");
            link_up(world);
            Group& group = *world.ranks[0];
            Arena& arena = *arena_of(group);
            std::byte* const memory = arena.allocate(2 * bytes);
            float* const x = reinterpret_cast<float*>(memory);
            float* const y = x + n;
            std::ranges::copy(values(0, n), x);
            std::fill_n(y, n, 1.0F);
            std::byte* const seen = shm(world, 1, 0).arena_of_peer()->at(arena.offset_of(memory + bytes));
            auto* const seen_by_peer = reinterpret_cast<float*>(seen);
            seen_by_peer[5] = 2.0F;
            CHECK(y[5] == 2.0F);
            // The others do not come: where their results are wanted has been said when it gives up.
            const auto operation = sum_of_floats(two_shot(0, size), n);
            std::optional<Error> error;
            try {
                if (in_background) {
                    const auto job = group.start(operation, memory, memory + bytes, 0.1);
                    group.wait(*job, 30.0, {});
                } else {
                    group.run(operation, memory, memory + bytes, 0.1, {});
                }
            } catch (const Error& thrown) {
                error = thrown;
            }
            REQUIRE(error.has_value());
            CHECK(error->kind() == ErrorKind::op_timeout);
            CHECK(y[5] == 2.0F);
            std::fill_n(y, n, 7.0F);
            // Each peer's block, from its first byte to its last.
            const std::size_t own = n / static_cast<std::size_t>(size);
            std::fill(seen_by_peer + own, seen_by_peer + n, 9.0F);
            CHECK(std::all_of(y + own, y + n, [](float value) { return value == 7.0F; }));
            arena.release(memory, 2 * bytes);
        }
    }
}

TEST_CASE("who was to write half of a message to ordinary memory cannot do so after the deadline") {
    constexpr std::size_t length = std::size_t{32} << 20;
    Geometry geometry;
    geometry.size = 2;
    geometry.slot_bytes = 64 << 10;
    geometry.staging_bytes = 128 << 10;
    const std::array<std::shared_ptr<Arena>, 2> arenas{Arena::create_shared(geometry),
                                                       Arena::create_shared(geometry)};
    WriteGrant grant;
    const auto link = [&](int rank) {
        const Arena& peer = *arenas[static_cast<std::size_t>(1 - rank)];
        return std::make_unique<ShmLink>(Peer{1 - rank, "here"}, rank, arenas[static_cast<std::size_t>(rank)],
                                         Arena::map(peer.fd(), geometry, peer.header().cookie, UniqueFd()),
                                         ::getpid(), &grant);
    };
    const auto sender = link(0);
    const auto receiver = link(1);
    if (arenas[1]->header().reads == Reads::never) {
        MESSAGE("skipped: the kernel reads no other process's memory here");
        return;
    }
    Context context;
    context.traffic.sends = false;  // the receiver's operation
    Carriage carriage;
    carriage.pulled.from = carriage.pulled_slowly.from = 1;
    sender->fix_carriage(carriage);
    const std::vector<std::byte> message(length, std::byte{1});
    std::vector<std::byte> got(length);
    sender->begin(context, length);
    receiver->expect(context, length);
    bool taken = false;
    std::int32_t by = 0;
    std::uint64_t place = 0;
    // Piece by piece, until the sender takes half of one as soon as the receiver has begun. There it is
    // stopped.
    constexpr std::size_t piece = std::size_t{1} << 20;
    for (std::uint64_t line = 1; !taken; ++line) {
        REQUIRE(line * piece <= length);
        const std::size_t at = (line - 1) * piece;
        REQUIRE(sender->write(message.data() + at, piece) == piece);
        std::atomic<bool> runs{false}, stop{false};
        std::thread helper([&] {
            JointCopy copy(arenas[0]->outlet(1).joint, line);
            runs = true;
            while (!taken && !stop) taken = copy.take_as_sender();
            place = copy.place();
            by = copy.grant();
        });
        while (!runs) std::this_thread::yield();
        const std::size_t read = receiver->read(got.data() + at, piece, Stores::cached);
        stop = true;
        helper.join();
        CHECK(read == (taken ? 0 : piece));
    }
    REQUIRE(by != 0);
    const std::size_t middle = JointCopy::middle(piece);
    REQUIRE(Remote(by).write(message.data(), place + middle, 1));  // as long as it may
    const auto began = std::chrono::steady_clock::now();
    receiver->abandon();
    CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(10));
    std::ranges::fill(got, std::byte{7});
    CHECK_FALSE(Remote(by).write(message.data(), place + middle, piece - middle));
    CHECK(std::ranges::all_of(got, [](std::byte b) { return b == std::byte{7}; }));
}
