#include <doctest/doctest.h>
#include <sched.h>

#include <chrono>
#include <thread>
#include <vector>

#include "home.hpp"
#include "wait.hpp"

using collectives::Backoff;
using collectives::Home;
using collectives::LostSlice;
using namespace std::chrono_literals;

namespace {

std::vector<int> allowed_cores() {
    cpu_set_t allowed;
    REQUIRE(::sched_getaffinity(0, sizeof(allowed), &allowed) == 0);
    std::vector<int> cores;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
        if (CPU_ISSET(core, &allowed)) cores.push_back(core);
    }
    return cores;
}

void bind_to(int core) {
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(core, &only);
    REQUIRE(::sched_setaffinity(0, sizeof(only), &only) == 0);
}

// Where the calling thread is after having been on `elsewhere`, free to be anywhere, and sent home.
int core_after_seeking(Home& home, int elsewhere, Home::Clock::time_point now, bool robbed = false) {
    const std::vector<int> before = allowed_cores();
    cpu_set_t all;
    REQUIRE(::sched_getaffinity(0, sizeof(all), &all) == 0);
    bind_to(elsewhere);
    REQUIRE(::sched_setaffinity(0, sizeof(all), &all) == 0);
    home.seek(now, robbed);
    const int core = ::sched_getcpu();
    CHECK(allowed_cores() == before);
    return core;
}

}  // namespace

TEST_CASE("a thread is moved home, and not bound to it") {
    const std::vector<int> cores = allowed_cores();
    if (cores.size() < 2) return;
    Home home(cores[1]);
    const auto now = Home::Clock::now();
    CHECK(core_after_seeking(home, cores[0], now) == cores[1]);
    CHECK(core_after_seeking(home, cores[0], now) == cores[0]);  // it has just been moved
    CHECK(core_after_seeking(home, cores[0], now + 1s) == cores[1]);
}

TEST_CASE("a home where time slices are lost is left alone for a while, and for longer the next time") {
    const std::vector<int> cores = allowed_cores();
    if (cores.size() < 2) return;
    Home home(cores[1]);
    auto now = Home::Clock::now();
    core_after_seeking(home, cores[1], now, true);
    CHECK(core_after_seeking(home, cores[0], now + 40ms) == cores[0]);
    CHECK(core_after_seeking(home, cores[0], now + 60ms) == cores[1]);
    now += 70ms;
    core_after_seeking(home, cores[1], now, true);
    CHECK(core_after_seeking(home, cores[0], now + 90ms) == cores[0]);
    CHECK(core_after_seeking(home, cores[0], now + 110ms) == cores[1]);
}

TEST_CASE("a slice that is lost while who is waited for has work elsewhere is no reason to leave home") {
    const std::vector<int> cores = allowed_cores();
    if (cores.size() < 2) return;
    Backoff backoff(0, cores[1]);
    std::thread([&] {
        cpu_set_t all;
        REQUIRE(::sched_getaffinity(0, sizeof(all), &all) == 0);
        const auto be_on = [&](int core) {
            bind_to(core);
            REQUIRE(::sched_setaffinity(0, sizeof(all), &all) == 0);
        };
        be_on(cores[1]);
        backoff.idle(true);
        backoff.tell_lost_slice(LostSlice::to_others_while_away);
        be_on(cores[0]);
        // Yielding is skipped for some milliseconds.
        while (backoff.idle(true) == Backoff::Next::sleep) backoff.reset();
        CHECK(::sched_getcpu() == cores[1]);
    }).join();
}

TEST_CASE("without a home nobody is moved, nor to a core that is not allowed") {
    const std::vector<int> cores = allowed_cores();
    for (const int core : {-1, CPU_SETSIZE - 1}) {
        Home home(core);
        CHECK(core_after_seeking(home, cores[0], Home::Clock::now()) == cores[0]);
    }
    if (cores.size() < 2) return;
    std::thread([&] {
        bind_to(cores[0]);
        Home home(cores[1]);
        home.seek(Home::Clock::now(), false);
        CHECK(::sched_getcpu() == cores[0]);
        CHECK(allowed_cores() == std::vector<int>{cores[0]});
    }).join();
}
