// A peer that goes on with what a failed operation left it in the middle of: it reaches no memory of the
// caller's.
#include <sys/mman.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <optional>

#include "groups.hpp"
#include "shm/arena_of.hpp"
#include "shm/link.hpp"
#include "shm/memory.hpp"
#include "shm/tuning.hpp"

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

// The sender's part of a copy, by a timer's signal: it comes while the receiver reads however few cores there
// are.
class TakeWhileItReads {
  public:
    explicit TakeWhileItReads(JointCopy::Shared& shared) {
        shared_ = &shared;
        line_ = 0;
        taken_ = false;
        struct sigaction action{};
        action.sa_handler = [](int) {
            if (line_ > 0 && !taken_) taken_ = JointCopy(*shared_, line_).take_as_sender();
        };
        action.sa_flags = SA_RESTART;
        REQUIRE(::sigaction(SIGALRM, &action, &before_) == 0);
        constexpr timeval interval{.tv_sec = 0, .tv_usec = 20};
        set({.it_interval = interval, .it_value = interval});
    }
    TakeWhileItReads(const TakeWhileItReads&) = delete;
    TakeWhileItReads& operator=(const TakeWhileItReads&) = delete;
    ~TakeWhileItReads() {
        set({});
        ::sigaction(SIGALRM, &before_, nullptr);
    }

    void half_of(std::uint64_t line) { line_ = line; }
    bool taken() const { return taken_; }

  private:
    static void set(const itimerval& timer) { CHECK(::setitimer(ITIMER_REAL, &timer, nullptr) == 0); }

    inline static JointCopy::Shared* shared_ = nullptr;
    inline static std::atomic<std::uint64_t> line_ = 0;
    inline static std::atomic<bool> taken_ = false;
    struct sigaction before_{};
};

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
    constexpr std::size_t length = 16 * tuning::cma_piece;
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
    // Piece by piece, until the sender takes half of one after the receiver has begun. There it is stopped.
    constexpr std::size_t piece = tuning::cma_piece;
    std::uint64_t line = 1;
    {
        TakeWhileItReads sender_takes(arenas[0]->outlet(1).joint);
        for (std::size_t at = 0; !sender_takes.taken(); at += piece, ++line) {
            REQUIRE(at + piece <= length);
            REQUIRE(sender->write(message.data() + at, piece) == piece);
            sender_takes.half_of(line);
            const std::size_t read = receiver->read(got.data() + at, piece, Stores::cached);
            CHECK(read == (sender_takes.taken() ? 0 : piece));
        }
    }
    const JointCopy copy(arenas[0]->outlet(1).joint, line - 1);
    const std::int32_t by = copy.grant();
    const std::uint64_t place = copy.place();
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
