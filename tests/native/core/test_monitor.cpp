// The control plane: its overlay, its notices, who is watched, and what all ranks learn.
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <thread>

#include "core/monitor.hpp"
#include "core/overlay.hpp"
#include "groups.hpp"

using namespace collectives;
using namespace collectives::testing;
using namespace std::chrono_literals;

namespace {

GroupId some_group() {
    GroupId id{};
    id.fill(std::byte{9});
    return id;
}

const Monitor::Local nobody = [](int, const Notice&) { return false; };

// A monitor, and the other end of its link to rank 1.
struct Watched {
    explicit Watched(Heartbeats heartbeats, int size = 2)
        : monitor(0, size, {{1, false}}, nobody, heartbeats) {
        std::array<int, 2> ends{};
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
        other = UniqueFd(ends[1]);
        monitor.adopt(1, UniqueFd(ends[0]));
    }
    void send(const Notice& notice) const {
        const auto bytes = encode(notice);
        REQUIRE(::send(other.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
    }
    std::vector<Notice> progress() {
        std::vector<Notice> news;
        monitor.progress(news);
        return news;
    }

    UniqueFd other;
    Monitor monitor;
};

void run_sum(Group& group, const std::shared_ptr<const Program>& program, std::size_t n, double timeout) {
    std::vector<float> x(n);
    std::vector<float> y(n);
    group.run(sum_of_floats(program, n), raw(x), raw(y), timeout, {});
}

}  // namespace

TEST_CASE("the overlay is symmetric, sparse, and joins all ranks within few links") {
    for (const int size : {1, 2, 3, 4, 5, 7, 8, 16, 63, 64, 65, 1000, 1024}) {
        std::vector<int> distance(static_cast<std::size_t>(size), -1);
        distance[0] = 0;
        std::vector<int> queue{0};
        for (std::size_t i = 0; i < queue.size(); ++i) {
            for (const int next : control_neighbours(queue[i], size)) {
                const auto back = control_neighbours(next, size);
                REQUIRE(std::ranges::find(back, queue[i]) != back.end());
                REQUIRE(next != queue[i]);
                int& found = distance[static_cast<std::size_t>(next)];
                if (found >= 0) continue;
                found = distance[static_cast<std::size_t>(queue[i])] + 1;
                queue.push_back(next);
            }
        }
        CHECK(static_cast<int>(queue.size()) == size);
        CHECK(*std::ranges::max_element(distance) <= 8);
    }
    CHECK(control_neighbours(0, 64).size() == 6);
    CHECK(control_neighbours(5, 1024).size() == 10);
}

TEST_CASE("a notice arrives as it was sent, piece by piece, and nothing else is accepted") {
    Notice notice{
        .kind = Notice::Kind::abort, .error = ErrorKind::desync, .origin = 3, .number = 7, .subject = 2};
    notice.group = some_group();
    notice.call.sequence = 99;
    notice.call.count = 5;
    notice.fingerprint = 77;
    notice.ranks = {4, 0};
    notice.text = "because";
    const auto bytes = encode(notice);
    for (std::size_t n = 0; n < bytes.size(); ++n) CHECK(!decode(std::span(bytes).first(n), 5).notice);
    const Decoded whole = decode(bytes, 5);
    REQUIRE(whole.notice);
    CHECK(whole.length == bytes.size());
    CHECK(whole.notice->kind == notice.kind);
    CHECK(whole.notice->error == notice.error);
    CHECK(whole.notice->origin == 3);
    CHECK(whole.notice->number == 7);
    CHECK(whole.notice->subject == 2);
    CHECK(whole.notice->group == notice.group);
    CHECK(whole.notice->call == notice.call);
    CHECK(whole.notice->fingerprint == 77);
    CHECK(whole.notice->ranks == notice.ranks);
    CHECK(whole.notice->text == notice.text);
    CHECK_THROWS_AS(decode(bytes, 4), Error);    // rank 4 is none of four
    for (const std::size_t at : {0U, 4U, 5U}) {  // magic, kind, error
        auto other = bytes;
        other[at] = std::byte{200};
        CHECK_THROWS_AS(decode(other, 5), Error);
    }
    notice.text.assign(5000, 'x');
    notice.ranks.assign(1000, 1);
    const auto cut = encode(notice);
    CHECK(cut.size() <= longest_notice);
    CHECK(decode(cut, 5).notice->text.size() == 1024);
}

TEST_CASE("a neighbour that says nothing for the limit is dead, one that beats is not") {
    Watched one({.interval = 20ms, .limit = 200ms});
    const auto began = Clock::now();
    while (Clock::now() - began < 400ms) {
        one.send({.kind = Notice::Kind::beat, .origin = 1});
        CHECK(one.progress().empty());
        std::this_thread::sleep_for(20ms);
    }
    std::vector<Notice> news;
    const auto silent_since = Clock::now();
    while (news.empty() && Clock::now() - silent_since < 2s) {
        news = one.progress();
        std::this_thread::sleep_for(5ms);
    }
    REQUIRE(news.size() == 1);
    CHECK(Clock::now() - silent_since >= 150ms);
    CHECK(news[0].kind == Notice::Kind::dead);
    CHECK(news[0].subject == 1);
    // The neighbour gets the notice, in case that it lives.
    std::array<std::byte, 1 << 16> room{};
    const ssize_t n = ::recv(one.other.get(), room.data(), room.size(), 0);
    REQUIRE(n > 0);
    std::set<Notice::Kind> kinds;
    std::size_t used = 0;
    while (used < static_cast<std::size_t>(n)) {
        const Decoded next = decode(std::span(room).subspan(used, static_cast<std::size_t>(n) - used), 2);
        REQUIRE(next.notice);
        kinds.insert(next.notice->kind);
        used += next.length;
    }
    CHECK(kinds == std::set{Notice::Kind::beat, Notice::Kind::dead});
}

TEST_CASE("a rank that hears none of its neighbours tells nobody that they are dead") {
    Monitor monitor(0, 4, {{1, false}, {3, false}}, nobody, {.interval = 20ms, .limit = 200ms});
    std::vector<UniqueFd> others;
    for (const int neighbour : {1, 3}) {
        std::array<int, 2> ends{};
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
        others.emplace_back(ends[1]);
        monitor.adopt(neighbour, UniqueFd(ends[0]));
    }
    std::vector<Notice> news;
    const auto began = Clock::now();
    while (news.size() < 2 && Clock::now() - began < 2s) {
        monitor.progress(news);
        std::this_thread::sleep_for(5ms);
    }
    REQUIRE(news.size() == 2);
    for (const Notice& notice : news) {
        CHECK(notice.kind == Notice::Kind::dead);
        CHECK(notice.number == 0);
    }
    for (const UniqueFd& other : others) {
        std::array<std::byte, 1 << 16> room{};
        const ssize_t n = ::recv(other.get(), room.data(), room.size(), 0);
        std::size_t used = 0;
        while (n > 0 && used < static_cast<std::size_t>(n)) {
            const Decoded next = decode(std::span(room).subspan(used, static_cast<std::size_t>(n) - used), 4);
            REQUIRE(next.notice);
            CHECK(next.notice->kind == Notice::Kind::beat);
            used += next.length;
        }
    }
}

TEST_CASE("a neighbour that misses heartbeats is in doubt until it is heard again, or judged") {
    Watched one({.interval = 20ms, .limit = 400ms});
    CHECK(one.monitor.in_doubt_until() == Clock::time_point{});
    const auto began = Clock::now();
    while (one.monitor.in_doubt_until() == Clock::time_point{} && Clock::now() - began < 300ms) {
        CHECK(one.progress().empty());
        std::this_thread::sleep_for(5ms);
    }
    CHECK(one.monitor.in_doubt_until() >= began + 300ms);
    CHECK(one.monitor.in_doubt_until() <= Clock::now() + 420ms);
    one.send({.kind = Notice::Kind::beat, .origin = 1});
    CHECK(one.progress().empty());
    CHECK(one.monitor.in_doubt_until() == Clock::time_point{});
    while (one.progress().empty() && Clock::now() - began < 5s) std::this_thread::sleep_for(5ms);
    CHECK(one.monitor.in_doubt_until() == Clock::time_point{});  // it counts as dead
}

TEST_CASE("a rank that has heard one neighbour for half of the limit is not cut off") {
    Monitor monitor(0, 4, {{1, false}, {3, false}}, nobody, {.interval = 20ms, .limit = 600ms});
    std::vector<UniqueFd> others;
    for (const int neighbour : {1, 3}) {
        std::array<int, 2> ends{};
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
        others.emplace_back(ends[1]);
        monitor.adopt(neighbour, UniqueFd(ends[0]));
    }
    const auto began = Clock::now();
    std::vector<Notice> news;
    bool has_beaten = false;
    while (news.empty() && Clock::now() - began < 2s) {
        // One heartbeat of rank 3, late: many intervals pass after it.
        if (!has_beaten && Clock::now() - began > 450ms) {
            const auto bytes = encode({.kind = Notice::Kind::beat, .origin = 3});
            REQUIRE(::send(others[1].get(), bytes.data(), bytes.size(), 0) ==
                    static_cast<ssize_t>(bytes.size()));
            has_beaten = true;
        }
        monitor.progress(news);
        std::this_thread::sleep_for(5ms);
    }
    REQUIRE(news.size() == 1);
    CHECK(news[0].subject == 1);
    CHECK(news[0].number == 1);  // all ranks learn it
}

TEST_CASE("time in which this process did not run counts against nobody") {
    Watched one({.interval = 20ms, .limit = 1s});
    CHECK(one.progress().empty());
    std::this_thread::sleep_for(1500ms);  // as if it were stopped: nothing calls `progress`
    CHECK(one.progress().empty());
    one.send({.kind = Notice::Kind::beat, .origin = 1});
    CHECK(one.progress().empty());
}

TEST_CASE("a connection that ends is a death, unless the neighbour has left before") {
    Watched one({});
    one.other.reset();
    const auto news = one.progress();
    REQUIRE(news.size() == 1);
    CHECK(news[0].kind == Notice::Kind::dead);
    Watched two({});
    two.send({.kind = Notice::Kind::bye, .origin = 1});
    two.other.reset();
    const auto goodbye = two.progress();
    REQUIRE(goodbye.size() == 1);
    CHECK(goodbye[0].kind == Notice::Kind::bye);
    CHECK(two.progress().empty());
    Watched three({});
    const std::array<char, 200> noise{'x'};
    REQUIRE(::send(three.other.get(), noise.data(), noise.size(), 0) > 0);
    CHECK(three.progress().at(0).kind == Notice::Kind::dead);
}

TEST_CASE("a notice to all is news once, by whatever way it comes") {
    Watched one({}, 8);
    std::vector<std::uint32_t> numbers;
    for (const std::uint32_t number : {1U, 3U, 3U, 2U, 1U, 70U, 6U, 7U, 200U, 70U}) {
        one.send({.kind = Notice::Kind::late, .origin = 5, .number = number, .group = some_group()});
        for (const Notice& notice : one.progress()) numbers.push_back(notice.number);
    }
    CHECK(numbers == std::vector<std::uint32_t>{1, 3, 2, 70, 6, 7, 200});
    one.send({.kind = Notice::Kind::late, .origin = 0, .number = 900, .group = some_group()});
    CHECK(one.progress().empty());  // its own
}

TEST_CASE("all ranks raise the error of the first") {
    for (const std::string& scheme : all_schemes) {
        CAPTURE(scheme);
        World world(5, scheme);
        std::vector<std::optional<Error>> errors(5);
        world.each([&](int rank, Group& group) {
            run_sum(group, flat(rank, 5), 10, 30.0);
            if (rank == 3) return;  // never comes
            errors[static_cast<std::size_t>(rank)] =
                error_of([&] { run_sum(group, flat(rank, 5), 10, rank == 1 ? 1.0 : 30.0); });
        });
        for (const int rank : {0, 1, 2, 4}) {
            const auto& error = errors[static_cast<std::size_t>(rank)];
            REQUIRE(error.has_value());
            CHECK(error->kind() == ErrorKind::op_timeout);
            CHECK(error->ranks() == std::vector{3});
            const std::string text = error->what();
            CHECK(text.find("waiting for rank 3, which has not begun it") != std::string::npos);
            if (rank != 1) CHECK(text.find("rank 1 (host1) has reported it") != std::string::npos);
        }
        const auto later = error_of([&] { run_sum(*world.ranks[3], flat(3, 5), 10, 30.0); });
        REQUIRE(later.has_value());
        CHECK(later->kind() == ErrorKind::op_timeout);
    }
}

TEST_CASE("ranks that call different things all learn who called what") {
    for (const std::string& scheme : all_schemes) {
        CAPTURE(scheme);
        World world(4, scheme);
        std::vector<std::optional<Error>> errors(4);
        const auto began = Clock::now();
        world.each([&](int rank, Group& group) {
            run_sum(group, ring(rank, 4), 100, 30.0);
            errors[static_cast<std::size_t>(rank)] =
                error_of([&] { run_sum(group, ring(rank, 4), rank == 2 ? 200 : 100, 30.0); });
        });
        CHECK(seconds_since(began) < 10.0);
        for (const auto& error : errors) {
            REQUIRE(error.has_value());
            CHECK(error->kind() == ErrorKind::desync);
            CHECK(std::string(error->what()).find("rank 2") != std::string::npos);
        }
    }
}

TEST_CASE("a rank that begins a second after its neighbour, so that both call each other, is linked to it") {
    std::vector<std::string> addresses(2);
    std::vector<std::unique_ptr<Group>> ranks;
    for (int rank = 0; rank < 2; ++rank) {
        ranks.push_back(std::make_unique<Group>(options(rank, 2)));
        ranks.back()->links().listen("tcp", listen_tcp(addresses[static_cast<std::size_t>(rank)]));
    }
    ranks[1]->links().route(0, "tcp", {addresses[0]}, "host0");
    std::this_thread::sleep_for(1300ms);
    ranks[0]->links().route(1, "tcp", {addresses[1]}, "host1");
    for (int round = 0; round < 2; ++round) {
        std::vector<std::thread> threads;
        for (int rank = 0; rank < 2; ++rank) {
            threads.emplace_back(
                [&, rank] { run_sum(*ranks[static_cast<std::size_t>(rank)], flat(rank, 2), 10, 30.0); });
        }
        for (std::thread& thread : threads) thread.join();
        std::this_thread::sleep_for(300ms);
    }
    for (const auto& rank : ranks) CHECK_FALSE(rank->broken().has_value());
    // The loss of one is known to the other at once.
    ranks[0].reset();
    const auto error = error_of([&] { run_sum(*ranks[1], flat(1, 2), 10, 30.0); });
    REQUIRE(error.has_value());
    CHECK(error->kind() == ErrorKind::peer_lost);
}
