// Links between threads: what they carry, and what a failed sender's memory is safe from.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <thread>

#include "groups.hpp"
#include "inproc/link.hpp"

using namespace collectives;
using namespace collectives::testing;

namespace {

class CountingWaker final : public Waker {
  public:
    void ring() override { ++rung; }
    std::atomic<int> rung{0};
};

// Two ranks, driven by this thread.
struct Pair {
    Pair() {
        for (int rank = 0; rank < 2; ++rank) {
            wakers[static_cast<std::size_t>(rank)] = std::make_shared<CountingWaker>();
            endpoints[static_cast<std::size_t>(rank)] =
                std::make_shared<InprocEndpoint>(2, wakers[static_cast<std::size_t>(rank)]);
        }
        links[0] = std::make_unique<InprocLink>(Peer{1, "here"}, 0, endpoints[0], endpoints[1]);
        links[1] = std::make_unique<InprocLink>(Peer{0, "here"}, 1, endpoints[1], endpoints[0]);
    }

    std::array<std::shared_ptr<CountingWaker>, 2> wakers;
    std::array<std::shared_ptr<InprocEndpoint>, 2> endpoints;
    std::array<std::unique_ptr<InprocLink>, 2> links;
};

std::vector<std::byte> bytes(std::size_t n, int seed = 1) {
    std::vector<std::byte> data(n);
    for (std::size_t i = 0; i < n; ++i)
        data[i] = std::byte(static_cast<unsigned char>(i * 7 + static_cast<std::size_t>(seed)));
    return data;
}

Context operation(std::uint64_t sequence) {
    Call call;
    call.sequence = sequence;
    return Context(call);
}

ErrorKind kind_of(const std::function<void()>& work) {
    try {
        work();
    } catch (const Error& error) {
        return error.kind();
    }
    FAIL("nothing was thrown");
    return ErrorKind::invalid;
}

}  // namespace

TEST_CASE("messages of all lengths, in parts of any size, by reads and by loans") {
    Pair pair;
    const Context context = operation(0);
    for (const std::size_t n :
         {std::size_t{0}, std::size_t{1}, inproc_eager_up_to, inproc_eager_up_to + 1, std::size_t{1} << 20}) {
        for (const bool lends : {false, true}) {
            for (const std::size_t part : {std::size_t{1} << 20, std::size_t{3000}}) {
                CAPTURE(n);
                CAPTURE(lends);
                const std::vector<std::byte> data = bytes(n);
                std::vector<std::byte> got(n);
                InprocLink& from = *pair.links[0];
                InprocLink& to = *pair.links[1];
                from.begin(context, n);
                to.expect(context, n);
                CHECK_FALSE(to.received());
                std::size_t written = 0;
                std::size_t read = 0;
                do {
                    written += from.write(data.data() + written, std::min(part, n - written));
                    CHECK(from.released() <= written);
                    if (lends && read < n) {
                        const auto there = to.lend(1);
                        std::copy(there.begin(), there.end(), got.begin() + static_cast<long>(read));
                        to.consume(there.size());
                        read += there.size();
                    } else {
                        read += to.read(got.data() + read, n - read, Stores::cached);
                    }
                } while (read < n);
                CHECK(to.received());
                CHECK(from.finished());
                CHECK(got == data);
            }
        }
    }
    CHECK(pair.wakers[1]->rung > 0);
    CHECK(pair.wakers[0]->rung > 0);
}

TEST_CASE("short messages are copied, so that their memory may change at once; long ones are not") {
    Pair pair;
    const Context context = operation(0);
    std::vector<std::byte> small = bytes(100);
    std::vector<std::byte> large = bytes(inproc_eager_up_to + 1);
    InprocLink& from = *pair.links[0];
    InprocLink& to = *pair.links[1];
    from.begin(context, small.size());
    REQUIRE(from.write(small.data(), small.size()) == small.size());
    CHECK(from.finished());
    from.begin(context, large.size());
    REQUIRE(from.write(large.data(), large.size()) == large.size());
    CHECK_FALSE(from.finished());
    std::ranges::fill(small, std::byte{0});
    to.expect(context, small.size());
    std::vector<std::byte> got(small.size());
    REQUIRE(to.read(got.data(), got.size(), Stores::cached) == got.size());
    CHECK(got == bytes(100));
    to.expect(context, large.size());
    const auto there = to.lend(1);
    CHECK(there.data() == large.data());
    to.consume(there.size());
    CHECK(from.finished());
}

TEST_CASE("a sender waits for a slot when the receiver is far behind") {
    Pair pair;
    const Context context = operation(0);
    InprocLink& from = *pair.links[0];
    InprocLink& to = *pair.links[1];
    const std::vector<std::byte> data = bytes(8);
    std::size_t sent = 0;
    for (; sent < 1000; ++sent) {
        from.begin(context, data.size());
        if (from.write(data.data(), data.size()) == 0) break;
    }
    CHECK(sent == InprocChannel::slots_per_channel);
    std::vector<std::byte> got(8);
    to.expect(context, got.size());
    REQUIRE(to.read(got.data(), got.size(), Stores::cached) == got.size());
    CHECK(from.write(data.data(), data.size()) == data.size());
}

TEST_CASE("another operation, and a message of another length, are refused") {
    Pair pair;
    const std::vector<std::byte> data = bytes(8);
    const Context first = operation(0);
    const Context second = operation(1);
    pair.links[0]->begin(first, data.size());
    REQUIRE(pair.links[0]->write(data.data(), data.size()) == data.size());
    pair.links[1]->expect(second, data.size());
    CHECK(kind_of([&] { pair.links[1]->ready(1); }) == ErrorKind::desync);
    pair.links[1]->expect(first, data.size() + 1);
    CHECK(kind_of([&] { pair.links[1]->ready(1); }) == ErrorKind::desync);
}

TEST_CASE("what a failed sender has announced is not read, but what was copied is") {
    Pair pair;
    const Context context = operation(0);
    const std::vector<std::byte> small = bytes(8);
    const std::vector<std::byte> large = bytes(1 << 20);
    InprocLink& from = *pair.links[0];
    InprocLink& to = *pair.links[1];
    from.begin(context, small.size());
    REQUIRE(from.write(small.data(), small.size()) == small.size());
    from.abandon();
    to.expect(context, small.size());
    std::vector<std::byte> got(large.size());
    CHECK(to.read(got.data(), small.size(), Stores::cached) == small.size());
    from.begin(context, large.size());
    REQUIRE(from.write(large.data(), large.size()) == large.size());
    from.abandon();
    to.expect(context, large.size());
    CHECK(kind_of([&] { to.read(got.data(), got.size(), Stores::cached); }) == ErrorKind::peer_lost);
}

TEST_CASE("a sender that fails waits until its receiver has left the pass in which it may read") {
    Pair pair;
    const Context context = operation(0);
    const std::vector<std::byte> large = bytes(1 << 20);
    pair.links[0]->begin(context, large.size());
    REQUIRE(pair.links[0]->write(large.data(), large.size()) == large.size());
    std::atomic<std::uint64_t>& passes = *pair.endpoints[1]->passes();
    passes.fetch_add(1);
    std::atomic<bool> left{false};
    std::thread sender([&] {
        pair.links[0]->abandon();
        CHECK(left.load());
    });
    std::this_thread::sleep_for(
        std::chrono::milliseconds(20));  // in which it would return, if it did not wait
    left = true;
    passes.fetch_add(1);
    sender.join();
}

namespace {

constexpr std::size_t n = 300'000;  // floats
constexpr std::size_t large_bytes = n * sizeof(float);

// Links for what follows: a whole operation.
void link_up(World& world) {
    const int size = static_cast<int>(world.ranks.size());
    world.each([&](int rank, Group& group) {
        std::vector<float> x = values(rank, 100);
        std::vector<float> y(100);
        group.run(sum_of_floats(two_shot(rank, size), 100), raw(x), raw(y), 30.0, {});
    });
}

}  // namespace

TEST_CASE("memory that a thread was to be sent may be gone after the deadline") {
    World world(2, "inproc", 0, true, {}, no_control_plane);
    link_up(world);
    void* const memory =
        ::mmap(nullptr, 2 * large_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    auto* const data = static_cast<std::byte*>(memory);
    const auto kind_of = [&](int rank, std::byte* in, std::byte* out, double timeout) {
        try {
            world.ranks[static_cast<std::size_t>(rank)]->run(sum_of_floats(one_shot(rank, 2), n), in, out,
                                                             timeout, {});
        } catch (const Error& error) {
            return std::optional(error.kind());
        }
        return std::optional<ErrorKind>();
    };
    CHECK(kind_of(0, data, data + large_bytes, 0.1) == ErrorKind::op_timeout);
    ::munmap(memory, 2 * large_bytes);
    std::vector<float> x = values(1, n);
    std::vector<float> y(n);
    CHECK(kind_of(1, raw(x), raw(y), 30.0) == ErrorKind::peer_lost);
}

namespace {

std::shared_ptr<const Program> from_0_to_1(int rank) {
    const std::vector<Step> steps{rank == 0 ? send({1}, {buffer_in, 0, 1}) : recv(0, {buffer_out, 0, 1})};
    return std::make_shared<const Program>(rank, 2, 1, 1, std::vector<std::vector<Block>>{}, steps);
}

}  // namespace

TEST_CASE("short messages that a thread has sent before it gave up still arrive") {
    World world(2, "inproc", 0, true, {}, no_control_plane);
    link_up(world);
    constexpr std::size_t few = 16;
    std::vector<float> x = values(0, few);
    std::vector<float> y(few);
    std::vector<float> large(n);
    std::vector<float> sums(n);
    Group& first = *world.ranks[0];
    Group& second = *world.ranks[1];
    first.run(sum_of_floats(from_0_to_1(0), few), raw(x), raw(y), 5.0, {});
    const auto late =
        error_of([&] { first.run(sum_of_floats(one_shot(0, 2), n), raw(large), raw(sums), 0.1, {}); });
    REQUIRE(late.has_value());
    second.run(sum_of_floats(from_0_to_1(1), few), raw(y), raw(y), 5.0, {});
    CHECK(y == values(0, few));
    const auto lost =
        error_of([&] { second.run(sum_of_floats(one_shot(1, 2), n), raw(large), raw(sums), 5.0, {}); });
    REQUIRE(lost.has_value());
    CHECK(lost->kind() == ErrorKind::peer_lost);
}
