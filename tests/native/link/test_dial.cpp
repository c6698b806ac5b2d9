// Which address is tried when, and when there is no hope.
#include <doctest/doctest.h>

#include <thread>

#include "link/dial.hpp"

using namespace collectives;
using namespace std::chrono_literals;

namespace {

const Problem refusal{"nobody listens", true};
const Problem passing{"no route"};

}  // namespace

TEST_CASE("addresses are tried in turn, and again after a pause that grows") {
    Dial dial(3, {"a", "b"});
    CHECK(dial.due() <= Clock::now());
    CHECK(dial.next() == "a");
    CHECK(dial.due() == Clock::time_point::max());
    CHECK(dial.failed(passing));
    CHECK(dial.due() <= Clock::now());
    for (auto pause = 10ms; pause <= 1000ms; pause *= 2) {
        CHECK(dial.next() == "b");
        const auto before = Clock::now();
        CHECK(dial.failed(passing));
        CHECK(dial.due() >= before + std::min(pause, 500ms));
        CHECK(dial.due() <= Clock::now() + std::min(pause, 500ms));
        CHECK(dial.next() == "a");
        CHECK(dial.failed(passing));
    }
}

TEST_CASE("a peer that listens nowhere is given up after a second, others are not") {
    Dial silent(1, {"a", "b"});
    Dial partly(1, {"a", "b"});
    for (Dial* dial : {&silent, &partly}) {
        dial->next();
        CHECK(dial->failed(refusal));
        dial->next();
        CHECK(dial->failed(refusal));
    }
    std::this_thread::sleep_for(1100ms);
    silent.next();
    CHECK(silent.failed(refusal));
    silent.next();
    CHECK(!silent.failed(refusal));
    CHECK(silent.error().kind() == ErrorKind::peer_lost);
    CHECK(silent.error().ranks() == std::vector<int>{1});
    CHECK(std::string(silent.error().what()) == "no connection to rank 1: b: nobody listens");
    partly.next();
    CHECK(partly.failed(passing));
    partly.next();
    CHECK(partly.failed(refusal));
}

TEST_CASE("a definite no counts once all addresses were tried") {
    Dial dial(2, {"a", "b"});
    dial.next();
    CHECK(dial.failed({"hung up", false, Verdict::wrong_proof}));
    dial.next();
    CHECK(!dial.failed(refusal));
    CHECK(dial.error().kind() == ErrorKind::auth);
    Dial older(2, {"a"});
    older.next();
    CHECK(!older.failed({"hung up", false, Verdict::other_version, 77}));
    CHECK(older.error().kind() == ErrorKind::config_mismatch);
    CHECK(std::string(older.error().what()).find("the other version 77") != std::string::npos);
}
