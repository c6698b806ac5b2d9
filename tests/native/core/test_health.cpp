// The first cause, who is late, and what a rank does in a long wait. Time is passed in, so nothing waits.
#include <doctest/doctest.h>

#include <string>
#include <thread>

#include "core/health.hpp"
#include "core/vigil.hpp"
#include "core/warnings.hpp"

using namespace collectives;
using namespace std::chrono_literals;

namespace {

Call collective(std::uint64_t sequence) {
    Call call;
    call.sequence = sequence;
    return call;
}

Call message() {
    Call call;
    call.collective = static_cast<std::uint8_t>(Collective::send);
    return call;
}

// A health whose reports are counted.
struct WatchedLink {
    WatchedLink() {
        health.watch_over({.stalled = [this](const Call&, std::uint32_t) { ++stalled; },
                           .ask_for_late = [this](const Call&) { ++asked; },
                           .name = [](int rank) { return "rank " + std::to_string(rank); },
                           .self = "rank 0"});
    }

    int rings = 0;
    int stalled = 0;
    int asked = 0;
    Health health{[this] { ++rings; }};
};

}  // namespace

TEST_CASE("the first cause counts, and rings") {
    WatchedLink one;
    CHECK(one.health.cause() == nullptr);
    one.health.condemn(
        {.kind = ErrorKind::peer_lost, .ranks = {2}, .gone = "rank 2 (host2)", .text = "it ended"});
    one.health.condemn({.kind = ErrorKind::desync, .text = "later"});
    CHECK(one.rings == 1);
    const Cause* const cause = one.health.cause();
    REQUIRE(cause != nullptr);
    CHECK(cause->error().kind() == ErrorKind::peer_lost);
    CHECK(std::string(cause->error().what()) == "rank 2 (host2) is gone: it ended");
    const Call call = collective(17);
    CHECK(std::string(cause->error(&call).what()).find("is gone during operation 17") != std::string::npos);
}

TEST_CASE("nobody waits for the cause of ranks that have left in order") {
    WatchedLink one;
    one.health.note_left(1);
    const auto began = Clock::now();
    one.health.wait_for_cause({1}, 10s, Clock::time_point::max());
    CHECK(Clock::now() - began < 5s);
    one.health.wait_for_cause({1, 2}, 20ms, Clock::time_point::max());
    CHECK(Clock::now() - began >= 20ms);
}

TEST_CASE("while a rank is silent, it may be the cause for which others have left") {
    WatchedLink one;
    one.health.note_left(1);
    one.health.note_doubt(Clock::now() + 10s);
    std::thread judging([&] {
        std::this_thread::sleep_for(50ms);
        one.health.condemn({.kind = ErrorKind::peer_lost, .ranks = {2}});
    });
    one.health.wait_for_cause({1}, 10ms, Clock::time_point::max());
    judging.join();
    REQUIRE(one.health.cause() != nullptr);
    CHECK(one.health.cause()->ranks == std::vector{2});
}

TEST_CASE("a wait for the cause ends when the silent rank is heard of, or at the deadline") {
    WatchedLink one;
    const auto began = Clock::now();
    one.health.note_left(1);
    one.health.note_doubt(began + 20s);
    one.health.wait_for_cause({1}, 10ms, began + 50ms);
    CHECK(Clock::now() - began >= 50ms);
    std::thread hearing([&] {
        std::this_thread::sleep_for(50ms);
        one.health.note_doubt({});
    });
    one.health.wait_for_cause({1}, 10ms, Clock::time_point::max());
    hearing.join();
    CHECK(Clock::now() - began < 10s);
    CHECK(one.health.cause() == nullptr);
}

TEST_CASE("which waits a loss ends, and when") {
    Cause loss{.kind = ErrorKind::peer_lost, .ranks = {2}, .grace = 1s};
    loss.since = Clock::now();
    const auto began = loss.since + 5s;
    const auto early = began + 10ms;
    const auto late = began + 1s;
    CHECK(loss.ends(collective(1), {1, 2}, began, early));  // it waits for the rank that is gone
    CHECK_FALSE(loss.ends(collective(1), {1}, began, early));
    CHECK(loss.ends(collective(1), {1}, began, late));
    CHECK(loss.ends(message(), {2}, began, early));
    CHECK_FALSE(loss.ends(message(), {1}, began, late));  // a message between others
    CHECK_FALSE(loss.forbids(message()));
    CHECK_FALSE(loss.forbids(collective(9)));
}

TEST_CASE("collectives before the one in which a rank has given up can be completed") {
    Cause cause{.kind = ErrorKind::desync, .ranks = {0, 1}, .sequence = 7};
    cause.since = Clock::now();
    CHECK_FALSE(cause.ends(collective(6), {1}, cause.since, cause.since + 1h));
    CHECK_FALSE(cause.forbids(collective(6)));
    CHECK(cause.ends(collective(7), {1}, cause.since, cause.since));
    CHECK(cause.forbids(collective(7)));
    CHECK(cause.forbids(message()));
    const Cause expelled{.kind = ErrorKind::stale_epoch};
    CHECK(expelled.ends(message(), {1}, cause.since, cause.since));
    CHECK(expelled.forbids(message()));
}

TEST_CASE("answers about one collective are not taken for another") {
    WatchedLink one;
    one.health.add_late(5, 3);
    one.health.add_late(5, 1);
    CHECK(one.health.late(5) == std::vector{1, 3});
    CHECK(one.health.late(6).empty());
    one.health.add_late(6, 2);
    one.health.add_late(5, 4);  // too late
    CHECK(one.health.late(6) == std::vector{2});
    one.health.forget_late();
    CHECK(one.health.late(6).empty());
}

TEST_CASE("a long wait is reported once, and warned of by name") {
    WatchedLink one;
    const auto begin = Clock::now();
    const Call call = collective(17);
    Vigil vigil(100.0, 0, begin);
    warnings::take();
    for (auto waited = 0ms; waited <= 99'000ms; waited += 50ms) {
        vigil.look(one.health, &call, 1, begin + waited);
        if (one.asked > 0) one.health.add_late(17, 3);
        if (waited == 400ms) CHECK(one.stalled == 0);
        if (waited == 1s) CHECK(one.stalled == 1);
        if (waited == 29s) CHECK(one.asked == 0);
        if (waited == 31s) {
            CHECK(one.asked == 1);
            CHECK(warnings::take() == std::vector<std::string>{"rank 3 has not begun " + call.describe() +
                                                               ", in which rank 0 has waited for 30 s"});
        }
    }
    CHECK(one.stalled == 1);
    CHECK(one.asked == 1);
    CHECK(warnings::take().empty());
    vigil.look(one.health, &call, 1, begin + 99'400ms);
    CHECK(one.asked == 2);  // before the deadline, so that the error can name who is late
}

TEST_CASE("time in which the process did not run does not count") {
    WatchedLink one;
    const auto begin = Clock::now();
    Vigil vigil(5.0, 0, begin);
    const auto deadline = vigil.deadline().at();
    vigil.look(one.health, nullptr, 0, begin + 50ms);
    vigil.look(one.health, nullptr, 0, begin + 60s);  // stopped in between
    CHECK(vigil.deadline().at() - deadline > 59s);
    CHECK(vigil.deadline().at() - deadline < 60s);
    vigil.rest(begin + 90s);  // but it was busy for this time
    vigil.look(one.health, nullptr, 0, begin + 90s + 50ms);
    CHECK(vigil.deadline().at() - deadline < 60s);
}
