// Connecting by a transport that takes its time: what ends it. The transport is a stand-in: that of tcp,
// whose links one rank makes slowly, or not at all.
#include <atomic>
#include <chrono>
#include <thread>

#include "groups.hpp"
#include "link/registry.hpp"

using namespace collectives;
using namespace collectives::testing;

namespace {

constexpr int slow_rank = 0;
constexpr int ranks = 9;
constexpr std::chrono::milliseconds takes{250};
std::atomic<bool> works{true};

class SlowTransport final : public Transport {
  public:
    explicit SlowTransport(const Setup& setup) : rank_(setup.rank), tcp_(make_transport("tcp", setup)) {}

    const Capabilities& capabilities() const override { return tcp_->capabilities(); }
    Meeting meeting() const override { return tcp_->meeting(); }
    int connections() const override { return tcp_->connections(); }
    Offer offer(int peer, int connection) override { return tcp_->offer(peer, connection); }
    std::unique_ptr<Link> connect(const Peer& peer, std::vector<Connection> connections) override {
        if (rank_ == slow_rank) {
            std::this_thread::sleep_for(takes);
            if (!works) throw Error(ErrorKind::transport_unavailable, "no answer from " + peer.name());
        }
        return tcp_->connect(peer, std::move(connections));
    }

  private:
    int rank_;
    std::unique_ptr<Transport> tcp_;
};

const RegisteredTransport registered(
    "slow", {[](const Setup& setup) { return std::make_unique<SlowTransport>(setup); },
             [](int, std::size_t) -> std::optional<std::string> { return std::nullopt; }});

struct Ended {
    std::optional<Error> error;
    std::chrono::duration<double> after{};
};

// How an operation for which the slow rank needs links to all others ends there.
Ended run(double timeout, bool in_background, const Interrupted& interrupted = {}) {
    World world(ranks, "slow", 0, true, {}, no_control_plane);
    Ended ended;
    std::atomic<bool> is_over{false};
    world.each([&](int rank, Group& group) {
        std::vector<float> x = values(rank, 10);
        std::vector<float> y(x.size());
        const auto operation = sum_of_floats(one_shot(rank, ranks), x.size());
        if (rank != slow_rank) {
            error_of([&] { group.run(operation, raw(x), raw(y), 20.0, [&] { return is_over.load(); }); });
            return;
        }
        const auto began = Clock::now();
        ended.error = error_of([&] {
            if (!in_background) return group.run(operation, raw(x), raw(y), timeout, interrupted);
            const auto work = group.start(operation, raw(x), raw(y), timeout);
            REQUIRE(group.wait(*work, 20.0, interrupted));
        });
        ended.after = Clock::now() - began;
        is_over = true;
    });
    return ended;
}

// Less than it takes to make all links.
constexpr double soon = 0.25 * (ranks - 1) - 0.5;

}  // namespace

TEST_CASE("if one of several ranks does not answer, the others are not tried") {
    works = false;
    for (const bool in_background : {false, true}) {
        const Ended ended = run(20.0, in_background);
        REQUIRE(ended.error);
        CHECK(ended.error->kind() == ErrorKind::transport_unavailable);
        CHECK(ended.after.count() < soon);
    }
    works = true;
}

TEST_CASE("a timeout ends connecting, and so does a signal") {
    for (const bool in_background : {false, true}) {
        const Ended ended = run(0.5, in_background);
        REQUIRE(ended.error);
        CHECK(ended.error->kind() == ErrorKind::op_timeout);
        CHECK(ended.after.count() < soon);
    }
    const auto began = Clock::now();
    const Ended ended =
        run(20.0, false, [&] { return Clock::now() - began > std::chrono::milliseconds(400); });
    REQUIRE(ended.error);
    CHECK(ended.error->kind() == ErrorKind::interrupted);
    CHECK(ended.after.count() < soon);
}

TEST_CASE("links that are made slowly are all made") {
    for (const bool in_background : {false, true}) CHECK_FALSE(run(20.0, in_background).error);
}
