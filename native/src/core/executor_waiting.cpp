// How the executor waits while nothing moves: spinning, yielding, sleeping, and what ends a wait.
#include <sched.h>

#include <algorithm>

#include "base/error.hpp"
#include "core/executor.hpp"
#include "core/lost_slice.hpp"
#include "engine/generalized.hpp"
#include "schedule/program.hpp"

namespace collectives {

using namespace std::chrono_literals;

namespace {

// A rank that waits for ranks on other cores checks after so many looks whether it now waits for a rank on
// its own core.
constexpr unsigned looks_per_question = 4;
// The caller's lock is released after so many looks, a microsecond or two.
constexpr int looks_while_locked = 64;
// Signals and silent deaths are noticed this often.
constexpr auto longest_sleep = 50ms;
// What a task waits for unseen is looked at this often.
constexpr auto unseen_sleep = 100us;

}  // namespace

void Executor::wait() {
    if (armed_) {
        check();
        look_for_other_calls();
        sleep();
        check();
        return;
    }
    if (!needed_) needed_ = settings_.shares_home && keeps_from_running();
    release_lock_unless_soon();
    switch (backoff_.idle(*needed_)) {
        case Backoff::Next::look:
            if (settings_.shares_home && ++looks_ % looks_per_question == 0) needed_.reset();
            break;
        case Backoff::Next::look_late:
            look_into_lost_slice();
            [[fallthrough]];
        case Backoff::Next::look_anew:
            needed_.reset();
            if (publishes_core()) {
                presence_->set_core(::sched_getcpu());
                presence_->mark_running(backoff_.looked());
            }
            break;
        case Backoff::Next::sleep:
            sleeper_.arm(std::any_of(under_way_.begin(), under_way_.end(),
                                     [](const auto& one) { return one->uses_sockets(); }));
            armed_ = true;
            for (const auto& one : under_way_) one->task().set_asleep(true);
            break;
    }
}

void Executor::release_lock_unless_soon() {
    CallerLock* const lock = under_way_.front()->request().lock;
    if (lock != nullptr && !backoff_.spins_within(looks_while_locked, *needed_)) lock->release();
}

void Executor::look_for_other_calls() {
    awaited_.clear();
    const Request& request = under_way_.front()->request();
    throw_if_accused(request);
    under_way_.front()->awaited(awaited_);
    for (const Awaited& one : awaited_) {
        const Link* const link = request.links[static_cast<std::size_t>(one.peer)];
        if (link != nullptr) link->compare(request.call);
    }
    awaited_.clear();
}

const Presence* Executor::presence_of(const Request& request, int peer) {
    if (presences_.empty()) presences_.resize(request.links.size());
    const Presence*& known = presences_[static_cast<std::size_t>(peer)];
    if (known == nullptr) {
        const Link* const link = request.links[static_cast<std::size_t>(peer)];
        if (link != nullptr) known = link->presence();
    }
    return known;
}

template <typename Predicate>
bool Executor::any_awaited(Predicate predicate) {
    return std::any_of(under_way_.begin(), under_way_.end(), [&](const auto& one) {
        return one->waits_for([&](int peer) { return predicate(presence_of(one->request(), peer)); });
    });
}

template <typename Predicate>
bool Executor::any_to_come(Predicate predicate) {
    const InFlight& oldest = *under_way_.front();
    if (!oldest.task().depends_on_all()) return false;
    for (std::size_t rank = 0; rank < oldest.request().links.size(); ++rank) {
        const Presence* const presence = presence_of(oldest.request(), static_cast<int>(rank));
        if (presence == nullptr || !predicate(*presence)) continue;
        if (!oldest.request().links[rank]->has_begun(oldest.request().call.sequence)) return true;
    }
    return false;
}

bool Executor::keeps_from_running() {
    const int core = ::sched_getcpu();
    // The cores of ranks that share no memory are unknown, so they may be on this core.
    if (any_awaited([&](const Presence* peer) { return peer == nullptr || peer->core() == core; }))
        return true;
    // The awaited ranks may be waiting for a rank on this core that has not begun the operation.
    return any_to_come(
        [&](const Presence& peer) { return peer.home() == settings_.home && peer.core() == core; });
}

void Executor::look_into_lost_slice() {
    if (!publishes_core()) return backoff_.preempted(-1);
    const int core = ::sched_getcpu();
    LostSlice slice(core, backoff_.lost_since(), backoff_.looked());
    const InFlight& oldest = *under_way_.front();
    for (std::size_t rank = 0; rank < oldest.request().links.size(); ++rank) {
        const Presence* const presence = presence_of(oldest.request(), static_cast<int>(rank));
        if (presence != nullptr) slice.add(*presence);
    }
    const auto excuses = [&](const Presence* peer) { return peer != nullptr && slice.is_excused(*peer); };
    const auto is_anyone = [](const Presence*) { return true; };
    const bool is_own = any_awaited(excuses) || (slice.is_excused_here() && !any_awaited(is_anyone));
    if (!slice.is_confirmed() && (slice.unseen() <= backoff_.slow() || is_own)) return;
    presence_->note_preemption(core, backoff_.looked());
    backoff_.preempted(slice.refuge(*presence_));
}

void Executor::disarm() {
    if (!armed_) return;
    for (const auto& one : under_way_) one->task().set_asleep(false);
    sleeper_.disarm();
    armed_ = false;
}

void Executor::sleep() {
    bool moved = false;
    awaited_.clear();
    polled_.clear();
    for (const auto& one : under_way_) {
        one->awaited(awaited_);
        for (const Awaited& awaited : awaited_) {
            Link* const on = one->request().links[static_cast<std::size_t>(awaited.peer)];
            if (on != nullptr) moved |= on->arm(awaited.sending, polled_);
        }
        awaited_.clear();
    }
    const std::chrono::nanoseconds longest =
        any_of([](const InFlight& one) { return one.waits_unseen(); }) ? unseen_sleep : longest_sleep;
    const auto left = vigil_.deadline().left(longest);
    if (!moved) sleeper_.sleep(polled_, left > 0ns ? left : longest);  // 0: the task has some grace
    disarm();
}

void Executor::check() {
    if (under_way_.front()->complete()) return;
    const Request& request = under_way_.front()->request();
    const auto now = Clock::now();
    if (!timed_) {
        timed_ = true;
        asked_ = now;
        vigil_ = Vigil(request.timeout, request.operation->program().rank, now);
    }
    if (closing_.load(std::memory_order_acquire)) {
        throw Error(ErrorKind::aborted,
                    request.call.describe() + " was given up: this communicator is being closed");
    }
    vigil_.look(health_, request.call.is_message() ? nullptr : &request.call, request.fingerprint, now);
    ask_caller(now);
    throw_if_lost(now);
    if (under_way_.front()->complete()) return;
    std::vector<int> peers = waiting_for();
    const bool waits_for_itself = peers == std::vector{request.operation->program().rank};
    if (waits_for_itself && request.interrupted != nullptr && under_way_.size() == 1) {
        throw Error(
            ErrorKind::invalid,
            "this rank waits for a message from itself that it has not sent: send first, or receive in "
            "the background");
    }
    if (vigil_.deadline().passed() && now - vigil_.deadline().at() >= under_way_.front()->task().grace()) {
        throw_timeout(std::move(peers));
    }
}

void Executor::ask_caller(Clock::time_point now) {
    if (now - asked_ < longest_sleep) return;
    asked_ = now;
    const Request& request = under_way_.front()->request();
    if (request.interrupted == nullptr || !*request.interrupted) return;
    if ((*request.interrupted)()) {
        throw Error(ErrorKind::interrupted, request.call.describe() + " was interrupted");
    }
    vigil_.rest(Clock::now());
}

bool Executor::still_waits_for(int peer) {
    while (pass()) {
    }
    if (under_way_.front()->complete()) return false;
    if (peer < 0) return true;
    const std::vector<int> peers = waiting_for();
    return std::find(peers.begin(), peers.end(), peer) != peers.end();
}

void Executor::throw_if_lost(Clock::time_point now) {
    const Request& request = under_way_.front()->request();
    const std::vector<int> peers = waiting_for();
    const auto why_lost = [&](int peer) -> const char* {
        Link* const link = request.links[static_cast<std::size_t>(peer)];
        return link == nullptr ? nullptr : link->lost();
    };
    const auto is_out = [&](int peer) {
        // This rank waits here and sends nothing.
        return peer == request.operation->program().rank || why_lost(peer) != nullptr;
    };
    // If any one of the awaited peers suffices, it is enough that one of them is not lost.
    const bool others =
        under_way_.front()->task().waits_for_any() && !std::all_of(peers.begin(), peers.end(), is_out);
    const auto lost = others ? peers.end() : std::find_if(peers.begin(), peers.end(), why_lost);
    if (const Cause* const cause = health_.cause()) {
        const bool ends =
            lost != peers.end() || (!others && cause->ends(request.call, peers, vigil_.began(), now));
        if (ends && still_waits_for(lost != peers.end() ? *lost : -1)) throw cause->error(&request.call);
        return;
    }
    if (lost == peers.end() || !still_waits_for(*lost)) return;
    // The peer may have ended because ranks called different operations; then that is the error here, too.
    look_for_other_calls();
    request.links[static_cast<std::size_t>(*lost)]->throw_lost(request.call, why_lost(*lost));
}

void Executor::throw_timeout(std::vector<int> peers) {
    const std::string elapsed = seconds_text(Clock::now() - vigil_.began());
    const Request& request = under_way_.front()->request();
    const std::vector<int> late =
        request.call.is_message() ? std::vector<int>{} : health_.late(request.call.sequence);
    std::string awaited = name_ranks(peers);
    if (under_way_.front()->waits_for_links()) awaited = "a connection to " + awaited;
    if (request.generalized != nullptr && peers.empty()) {
        awaited = std::string("engine '") + request.generalized->engine() + "' on this rank";
        peers = {request.operation->program().rank};
    }
    if (request.transfer != nullptr && request.transfer->is_coming()) {
        awaited = "copies from this rank's device, whose stream is held up";
    }
    if (!late.empty()) {
        awaited = name_ranks(late) + ", which " + (late.size() == 1 ? "has" : "have") + " not begun it";
        peers = late;
    }
    throw Error(ErrorKind::op_timeout,
                request.call.describe() + " timed out after " + elapsed + ", waiting for " + awaited, peers);
}

std::vector<int> Executor::waiting_for() {
    awaited_.clear();
    under_way_.front()->awaited(awaited_);
    std::vector<int> peers;
    for (const Awaited& awaited : awaited_) peers.push_back(awaited.peer);
    awaited_.clear();
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    return peers;
}

}  // namespace collectives
