#include <doctest/doctest.h>
#include <sched.h>

#include <chrono>
#include <thread>
#include <vector>

#include "base/home.hpp"
#include "base/wait.hpp"
#include "cores.hpp"

using collectives::Backoff;
using collectives::Home;
using collectives::testing::bind_to;
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

// Where the calling thread is after having been on `elsewhere`, free to be anywhere, and `act`.
template <typename Act>
int core_after(int elsewhere, Act act) {
    const std::vector<int> before = allowed_cores();
    cpu_set_t all;
    REQUIRE(::sched_getaffinity(0, sizeof(all), &all) == 0);
    bind_to(elsewhere);
    REQUIRE(::sched_setaffinity(0, sizeof(all), &all) == 0);
    act();
    const int core = ::sched_getcpu();
    CHECK(allowed_cores() == before);
    return core;
}

int core_after_seeking(Home& home, int elsewhere, Home::Clock::time_point now) {
    return core_after(elsewhere, [&] { home.seek(now); });
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

TEST_CASE("a home where others are is left for a while, each time") {
    const std::vector<int> cores = allowed_cores();
    if (cores.size() < 2) return;
    Home home(cores[1]);
    auto now = Home::Clock::now();
    for (int time = 0; time < 3; ++time) {
        CHECK(core_after(cores[1], [&] { CHECK(home.flee(now, cores[0])); }) == cores[0]);
        CHECK(core_after_seeking(home, cores[1], now + 40ms) == cores[0]);
        CHECK(core_after_seeking(home, cores[0], now + 60ms) == cores[1]);
        now += 70ms;
    }
}

TEST_CASE("where there is no refuge, or it is no better, the kernel chooses for a while") {
    const std::vector<int> cores = allowed_cores();
    if (cores.size() < 2) return;
    const auto now = Home::Clock::now();
    for (const int refuge : {-1, CPU_SETSIZE - 1}) {
        Home home(cores[1]);
        CHECK(core_after(cores[1], [&] { CHECK(!home.flee(now, refuge)); }) == cores[1]);
        CHECK(core_after_seeking(home, cores[0], now + 40ms) == cores[0]);
        CHECK(core_after_seeking(home, cores[0], now + 60ms) == cores[1]);
    }
    Home home(cores[1]);
    core_after(cores[1], [&] { home.flee(now, cores[0]); });
    CHECK(core_after(cores[0], [&] { CHECK(!home.flee(now + 20ms, -1)); }) == cores[0]);
    CHECK(core_after_seeking(home, cores[1], now + 40ms) == cores[1]);
}

TEST_CASE("who flees goes on yielding") {
    const std::vector<int> cores = allowed_cores();
    if (cores.size() < 2) return;
    std::thread([&] {
        Backoff backoff(0, cores[1], true);
        cpu_set_t all;
        REQUIRE(::sched_getaffinity(0, sizeof(all), &all) == 0);
        bind_to(cores[1]);
        backoff.idle(true);  // at home, so that nothing moves it
        REQUIRE(::sched_setaffinity(0, sizeof(all), &all) == 0);
        CHECK(core_after(cores[1], [&] { backoff.preempted(cores[0]); }) == cores[0]);
        backoff.reset();
        CHECK(backoff.idle(true) != Backoff::Next::sleep);
    }).join();
}

TEST_CASE("who has looked in vain goes home, whether others share it or not") {
    const std::vector<int> cores = allowed_cores();
    if (cores.size() < 2) return;
    for (const bool shares : {false, true}) {
        std::thread([&] {
            constexpr int looks = 3;
            cpu_set_t all;
            REQUIRE(::sched_getaffinity(0, sizeof(all), &all) == 0);
            // Beside other programs the kernel may move it in the moment before it is asked.
            bool went_home = false;
            for (int attempt = 0; attempt < 100 && !went_home; ++attempt) {
                Backoff backoff(looks, cores[1], shares);
                bind_to(cores[0]);
                for (int i = 0; i < looks; ++i) CHECK(backoff.idle(false) == Backoff::Next::look);
                REQUIRE(::sched_setaffinity(0, sizeof(all), &all) == 0);
                if (::sched_getcpu() != cores[0]) continue;
                backoff.idle(false);
                went_home = ::sched_getcpu() == cores[1];
            }
            CHECK(went_home);
        }).join();
    }
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
        home.seek(Home::Clock::now());
        CHECK(::sched_getcpu() == cores[0]);
        CHECK(allowed_cores() == std::vector<int>{cores[0]});
    }).join();
}
