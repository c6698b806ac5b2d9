#include <doctest/doctest.h>

#include <array>
#include <chrono>

#include "core/lost_slice.hpp"

using collectives::Clock;
using collectives::LostSlice;
using collectives::Presence;
using namespace std::chrono_literals;

namespace {

const Clock::time_point start = Clock::now();

// A rank that is in an operation, on that core, and has not been seen for long.
struct Rank {
    explicit Rank(int core) {
        presence.settle(core);
        presence.enter(start - 1s);
    }

    Presence presence{};
};

}  // namespace

TEST_CASE("nobody has been seen on a core that a other_program had") {
    Rank peer(0);
    Rank elsewhere(1);
    elsewhere.presence.mark_running(start + 3ms);
    LostSlice slice(0, start, start + 4ms);
    slice.add(peer.presence);
    slice.add(elsewhere.presence);
    CHECK(slice.unseen() == 4ms);
    CHECK(!slice.is_confirmed());
    CHECK(!slice.is_excused(peer.presence));
}

TEST_CASE("a rank that has waited or begun there has been seen") {
    Rank waiting(0);
    waiting.presence.mark_running(start + 3ms);
    LostSlice slice(0, start, start + 4ms);
    slice.add(waiting.presence);
    CHECK(slice.unseen() == 1ms);
    Rank beginning(0);
    beginning.presence.leave();
    beginning.presence.enter(start + 3500us);
    slice.add(beginning.presence);
    CHECK(slice.unseen() == 500us);
    Rank later(0);  // by its clock, between this rank's look at its own and the question
    later.presence.mark_running(start + 5ms);
    slice.add(later.presence);
    CHECK(slice.unseen() == 0ms);
}

TEST_CASE("a preemption that another rank publishes is believed") {
    Rank peer(0);
    peer.presence.note_preemption(0, start + 3ms);
    const auto is_confirmed = [&](int core, Clock::time_point since) {
        LostSlice slice(core, since, start + 4ms);
        slice.add(peer.presence);
        return slice.is_confirmed();
    };
    CHECK(is_confirmed(0, start));
    CHECK(!is_confirmed(0, start + 3500us));
    CHECK(!is_confirmed(1, start));
    peer.presence.set_core(1);
    CHECK(!is_confirmed(0, start));  // not there any more
}

TEST_CASE("a slice that was lost while who is awaited was at work of its own does not matter") {
    LostSlice slice(0, start, start + 4ms);
    Rank away(1);
    away.presence.mark_running(start - 10ms);
    away.presence.leave();
    CHECK(slice.is_excused(away.presence));
    away.presence.enter(start + 2500us);
    CHECK(slice.is_excused(away.presence));
    Rank soon_back(1);
    soon_back.presence.mark_running(start - 10ms);
    soon_back.presence.leave();
    soon_back.presence.enter(start + 1500us);
    CHECK(!slice.is_excused(soon_back.presence));
    Rank just_gone(1);
    just_gone.presence.mark_running(start + 2500us);
    just_gone.presence.leave();
    CHECK(!slice.is_excused(just_gone.presence));
    just_gone.presence.enter(start + 3ms);
    CHECK(!slice.is_excused(just_gone.presence));
    // Of what a peer has been seen to do since, none is counted.
    Rank peer(0);
    peer.presence.mark_running(start + 3500us);
    slice.add(peer.presence);
    Rank worked_before(1);
    worked_before.presence.mark_running(start - 10ms);
    worked_before.presence.leave();
    worked_before.presence.enter(start + 3ms);
    CHECK(!slice.is_excused(worked_before.presence));
}

TEST_CASE("the refuge is where fewest are and nobody has been preempted lately") {
    Rank own(0);
    std::array<Rank, 7> others{Rank(0), Rank(1), Rank(1), Rank(2), Rank(2), Rank(3), Rank(3)};
    const auto refuge = [&] {
        LostSlice slice(0, start, start + 4ms);
        for (const Rank& other : others) slice.add(other.presence);
        return slice.refuge(own.presence);
    };
    CHECK(refuge() == 1);
    others[0].presence.set_core(1);  // as it has done
    CHECK(refuge() == 2);
    others[5].presence.set_core(1);
    CHECK(refuge() == 3);
    others[6].presence.note_preemption(3, start);
    CHECK(refuge() == 2);
    own.presence.note_preemption(2, start);
    own.presence.note_preemption(0, start + 4ms);
    CHECK(refuge() == 1);
    others[1].presence.note_preemption(1, start - 200ms);
    CHECK(refuge() == -1);
    others[1].presence.note_preemption(0, start - 100ms);
    CHECK(refuge() == -1);
    others[1].presence.note_preemption(2, start - 100ms);  // which is one too many to remember
    CHECK(refuge() == 1);
}

TEST_CASE("without homes there is no refuge") {
    Rank own(-1);
    Rank other(-1);
    LostSlice slice(0, start, start + 4ms);
    slice.add(other.presence);
    CHECK(slice.refuge(own.presence) == -1);
}
