// Connecting by a transport that takes its time: what ends it. The transport is a stand-in: that of tcp,
// whose links one rank makes slowly, or not at all.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "groups.hpp"
#include "link/registry.hpp"

using namespace collectives;
using namespace collectives::testing;

namespace {

constexpr int slow_rank = 0;
constexpr int ranks = 9;
constexpr std::chrono::milliseconds usually{250};
std::atomic<std::chrono::milliseconds> takes{usually};
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
            std::this_thread::sleep_for(takes.load());
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

// Two ranks with two communicators of one job each, whose links are all made by the slow transport.
struct TwoEach {
    explicit TwoEach(Heartbeats heartbeats) {
        std::array<std::string, 2> addresses;
        for (int rank = 0; rank < 2; ++rank) {
            Group::Options own = options(rank, 2);
            own.job = std::make_shared<Job>(heartbeats);
            groups[0].push_back(std::make_unique<Group>(own));
            UniqueFd socket = listen_tcp(addresses.at(static_cast<std::size_t>(rank)));
            groups[0].back()->links().listen("slow", std::move(socket));
            own.identity.group.fill(std::byte{8});
            groups[1].push_back(std::make_unique<Group>(own));
            groups[1].back()->links().accept("slow");
        }
        for (auto& both : groups) {
            for (int rank = 0; rank < 2; ++rank) {
                const std::string& address = addresses.at(static_cast<std::size_t>(1 - rank));
                both[static_cast<std::size_t>(rank)]->links().route(1 - rank, "slow", {address}, "there");
            }
        }
    }

    std::array<std::vector<std::unique_ptr<Group>>, 2> groups;
};

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

TEST_CASE("while one communicator connects, another one works, and no rank is taken for dead") {
    constexpr std::chrono::seconds connects_for{1};
    const Heartbeats heartbeats{std::chrono::milliseconds(50), std::chrono::milliseconds(600)};
    for (const bool in_background : {false, true}) {
        takes = std::chrono::milliseconds(0);
        TwoEach world(heartbeats);
        const auto on_each = [](const std::function<void(int)>& work) {
            std::thread other([&] { work(1); });
            work(0);
            other.join();
        };
        std::array<std::atomic<bool>, 2> are_connected{};
        std::array<std::optional<Error>, 2> errors;
        Clock::duration connected_after{};
        const auto connect = [&](int rank) {
            Group& group = *world.groups[1][static_cast<std::size_t>(rank)];
            std::vector<float> x = values(rank, 10);
            std::vector<float> y(x.size());
            const auto operation = sum_of_floats(one_shot(rank, 2), x.size());
            const auto began = Clock::now();
            errors.at(static_cast<std::size_t>(rank)) = error_of([&] {
                if (!in_background) return group.run(operation, raw(x), raw(y), 20.0, {});
                group.wait(*group.start(operation, raw(x), raw(y), 20.0), 20.0, {});
            });
            if (rank == slow_rank) connected_after = Clock::now() - began;
            are_connected.at(static_cast<std::size_t>(rank)) = true;
        };
        // Both ranks go on until both are connected.
        Clock::duration slowest{};
        int operations = 0;
        const auto work = [&](int rank, bool once) {
            Group& group = *world.groups[0][static_cast<std::size_t>(rank)];
            std::vector<float> x(1);
            std::vector<float> y(1);
            const auto operation = sum_of_floats(one_shot(rank, 2), x.size());
            while (y[0] < 2) {
                x[0] = once || are_connected.at(static_cast<std::size_t>(rank)) ? 1.0F : 0.0F;
                const auto began = Clock::now();
                group.run(operation, raw(x), raw(y), 20.0, {});
                if (rank != slow_rank) continue;
                slowest = std::max(slowest, Clock::now() - began);
                ++operations;
            }
        };
        on_each([&](int rank) { work(rank, true); });
        takes = connects_for;
        slowest = {};
        operations = 0;
        on_each([&](int rank) {
            std::thread connects([&] { connect(rank); });
            work(rank, false);
            connects.join();
        });
        for (const auto& error : errors) CHECK_FALSE(error);
        CHECK(connected_after >= connects_for);
        CHECK(slowest < std::chrono::milliseconds(500));
        CHECK(operations > 10);
        for (const auto& both : world.groups) {
            for (const auto& group : both) CHECK_FALSE(group->broken());
        }
    }
    takes = usually;
}
