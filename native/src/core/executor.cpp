#include "core/executor.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/error.hpp"
#include "core/lost_slice.hpp"
#include "schedule/program.hpp"

namespace collectives {

using namespace std::chrono_literals;

namespace {

// While all goes well the clock is read once in so many passes.
constexpr unsigned passes_per_check = 64;
// Who waits for ranks on other cores asks again after so many looks: these may have got so far that it is
// somebody on its own core who is waited for.
constexpr unsigned looks_per_question = 4;
// The caller's lock is released after so many looks, a microsecond or two.
constexpr int looks_while_locked = 64;
// Signals and silent deaths are noticed this often.
constexpr auto longest_sleep = 50ms;
// How fast one rank after the other gets through an operation's data, at least.
constexpr std::uint64_t bytes_per_microsecond = 8'000;

// The time in which this rank reads what peers of its process have announced, see Link::abandon.
class Reading {
  public:
    explicit Reading(std::atomic<std::uint64_t>* passes) : passes_(passes) {
        if (passes_ != nullptr) passes_->fetch_add(1, std::memory_order_seq_cst);
    }
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;
    ~Reading() {
        if (passes_ != nullptr) passes_->fetch_add(1, std::memory_order_release);
    }

  private:
    std::atomic<std::uint64_t>* passes_;
};

const Presence* presence_of(const Request& request, int peer) {
    const Link* const link = request.links[static_cast<std::size_t>(peer)];
    return link == nullptr ? nullptr : link->presence();
}

std::chrono::microseconds work_of_others(const Operation& operation) {
    const std::uint64_t bytes = std::max(operation.in_bytes(), operation.out_bytes());
    const auto size = static_cast<std::uint64_t>(operation.program().size);
    return std::chrono::microseconds(bytes * size / bytes_per_microsecond);
}

}  // namespace

Executor::Executor(Settings settings, Engines engines, const Surroundings& surroundings, Recorder& recorder,
                   Sleeper& sleeper, const std::atomic<bool>& closing)
    : settings_(settings),
      recorder_(recorder),
      sleeper_(sleeper),
      closing_(closing),
      results_(settings.cache, surroundings.oversubscribed),
      backoff_(settings.spins, settings.home, settings.shares_home) {
    for (auto& engine : engines) engines_.push_back({std::move(engine), {}});
}

void Executor::share(Colocation& colocation) {
    colocations_.push_back(&colocation);
    if (presence_ == nullptr && colocation.presence() != nullptr) {
        presence_ = colocation.presence();
        presence_->settle(settings_.shares_home ? settings_.home : -1);
    }
    if (passes_ == nullptr) passes_ = colocation.passes();
}

void Executor::publish(const Request& request) {
    for (Colocation* const colocation : colocations_) colocation->publish(request.call);
    throw_if_accused(request);
}

void Executor::throw_if_accused(const Request& request) const {
    for (const Colocation* const colocation : colocations_) {
        const std::optional<int> by = colocation->accuser();
        if (by) request.links[static_cast<std::size_t>(*by)]->throw_disagreement(request.call);
    }
}

void Executor::close() {
    for (Row& row : engines_) row.idle.clear();
    engines_.clear();
    idle_.clear();
    colocations_.clear();
    presence_ = nullptr;
    passes_ = nullptr;
}

InFlight& Executor::add(const Request& request) {
    const Operation& operation = *request.operation;
    if (under_way_.empty()) {
        backoff_.reset();
        backoff_.expect(work_of_others(operation.section(0)));
        if (publishes_core()) {
            const auto now = Clock::now();
            presence_->set_core(::sched_getcpu());
            presence_->enter(now);
            backoff_.begin(now);
        }
        timed_ = false;
    }
    disarm();  // what it waits for may need another kind of sleep
    Request wanted = request;
    const ResultStores::Work work{&operation.program(), request.is_in_place() ? 0 : operation.in_bytes(),
                                  operation.out_bytes()};
    const ResultStores::Turn turn = results_.next(work);
    wanted.stores = turn.stores;
    wanted.knows_caches = results_.knows_caches();
    if (under_way_.empty()) {
        turn_ = turn;
        if (turn.timed) {
            timed_work_ = work;
            work_began_ = ResultStores::Clock::now();
        }
    }
    std::exception_ptr disagreement;
    try {
        publish(request);
    } catch (...) {
        disagreement = std::current_exception();
    }
    std::size_t engine = 0;
    while (engine + 1 < engines_.size() && engines_[engine].engine->refuses(wanted) != nullptr) ++engine;
    Row& row = engines_[engine];
    std::unique_ptr<Task> task;
    if (row.idle.empty()) {
        task = row.engine->make_task();
    } else {
        task = std::move(row.idle.back());
        row.idle.pop_back();
    }
    std::unique_ptr<InFlight> one;
    if (idle_.empty()) {
        one = std::make_unique<InFlight>();
    } else {
        one = std::move(idle_.back());
        idle_.pop_back();
    }
    end_wait();
    const std::uint64_t now = just_looked_ != 0 ? just_looked_ : ticks::now();
    just_looked_ = 0;
    if (wanted.record == 0) {
        wanted.record = record_queued(operation, request.call, request.queued != 0 ? request.queued : now);
    }
    one->begin(wanted, engine, std::move(task), under_way_);
    if (disagreement) one->fail(std::move(disagreement));
    recorder_.start(one->request().record, request.call, row.engine->name(), now);
    times_.push_back({now, waited_, false, false, false});
    under_way_.push_back(std::move(one));
    return *under_way_.back();
}

std::vector<EngineChoice> Executor::explain(const Request& request) const {
    std::vector<EngineChoice> found;
    for (const Row& row : engines_) found.push_back({row.engine->name(), row.engine->refuses(request)});
    return found;
}

std::uint64_t Executor::record_queued(const Operation& operation, const Call& call, std::uint64_t queued) {
    if (queued == 0) queued = ticks::now();
    if (!call.is_message()) return recorder_.add(call, -1, false, queued);
    const Step& step = operation.program().steps.at(0);
    const int peer = step.peers.size() == 1 ? step.peers[0] : -1;
    return recorder_.add(call, peer, step.kind == StepKind::send, queued);
}

void Executor::hold(InFlight& one, bool waits_for_links) {
    one.hold(waits_for_links);
    if (waits_for_links) {
        recorder_.hold(one.request().record);
        // Its record begins anew when it goes on, so the clock is read when it first moves.
        for (std::size_t i = 0; i < under_way_.size(); ++i) times_[i].tried |= under_way_[i].get() == &one;
    } else {
        recorder_.resume(one.request().record);
    }
}

void Executor::record_failure(const std::string& why) {
    end_wait();
    const std::uint64_t now = ticks::now();
    for (const auto& one : under_way_) recorder_.fail(one->request().record, why, now);
}

void Executor::record_failure_of_oldest(const std::string& why) {
    end_wait();
    recorder_.fail(under_way_.front()->request().record, why, ticks::now());
}

void Executor::begin_wait() {
    waits_since_ = ticks::now();
    for (std::size_t i = 0; i < under_way_.size(); ++i) {
        recorder_.wait(under_way_[i]->request().record, waited_ - times_[i].waited_before, waits_since_);
    }
}

void Executor::end_wait() {
    if (waits_since_ == 0) return;
    just_looked_ = ticks::now();
    waited_ += just_looked_ - waits_since_;
    waits_since_ = 0;
    for (std::size_t i = 0; i < under_way_.size(); ++i) {
        recorder_.wait(under_way_[i]->request().record, waited_ - times_[i].waited_before, 0);
    }
}

void Executor::record_first() {
    new_moves_ = false;
    for (std::size_t i = 0; i < under_way_.size(); ++i) {
        Times& times = times_[i];
        if (!times.moved || times.recorded) continue;
        times.recorded = true;
        if (times.tried && just_looked_ == 0) just_looked_ = ticks::now();
        recorder_.first(under_way_[i]->request().record, times.tried ? just_looked_ : times.begun);
    }
}

void Executor::retire() {
    std::unique_ptr<InFlight> one = std::move(under_way_.front());
    if (one->complete()) {
        if (turn_.timed) results_.took(timed_work_, turn_.stores, ResultStores::Clock::now() - work_began_);
        const Request& request = one->request();
        Operation::Traffic traffic = request.operation->traffic();
        if (request.receipt != nullptr && request.receipt->source >= 0) {
            traffic.received = request.receipt->count * request.operation->unit();
        }
        recorder_.finish(request.record, engines_[one->engine()].engine->name(), traffic.sent,
                         traffic.received, just_looked_ != 0 ? just_looked_ : ticks::now());
    }
    turn_.timed = false;
    just_looked_ = 0;
    under_way_.erase(under_way_.begin());
    times_.erase(times_.begin());
    for (const auto& later : under_way_) later->forget(one.get());
    engines_[one->engine()].idle.push_back(one->end());
    idle_.push_back(std::move(one));
    timed_ = false;
    if (under_way_.empty() && publishes_core()) presence_->leave();
}

void Executor::clear() {
    disarm();
    while (!under_way_.empty()) retire();
}

bool Executor::give_up() {
    for (const auto& one : under_way_) one->abandon();
    bool alone = true;
    for (const auto& one : under_way_) alone &= one->reclaim();
    clear();
    return alone;
}

void Executor::call_attention() {
    attention_.store(true, std::memory_order_seq_cst);
    sleeper_.ring();
}

bool Executor::work() {
    unsigned passes = 0;
    while (!under_way_.front()->complete()) {
        just_looked_ = 0;
        if (attention_.load(std::memory_order_relaxed) && attention_.exchange(false)) return false;
        if (under_way_.front()->error()) std::rethrow_exception(under_way_.front()->error());
        if (!pass()) {
            if (waits_since_ == 0) begin_wait();
            wait();
            continue;
        }
        end_wait();
        if (new_moves_) record_first();
        disarm();
        backoff_.reset();
        needed_.reset();
        if (++passes % passes_per_check == 0) check();
    }
    disarm();
    return true;
}

bool Executor::pass() {
    const Reading reading(passes_);
    bool moved = note(times_.front(), under_way_.front()->progress());
    for (std::size_t i = 1; i < under_way_.size(); ++i) {
        try {
            moved |= note(times_[i], under_way_[i]->progress());
        } catch (...) {
            under_way_[i]->fail(std::current_exception());
        }
    }
    return moved;
}

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

bool Executor::any_awaited(FunctionRef<bool(const Presence*)> predicate) {
    return std::any_of(under_way_.begin(), under_way_.end(), [&](const auto& one) {
        return one->waits_for([&](int peer) { return predicate(presence_of(one->request(), peer)); });
    });
}

bool Executor::any_to_come(FunctionRef<bool(const Presence&)> predicate) const {
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
    // Of ranks that share no memory nothing is known, so they may be here.
    if (any_awaited([&](const Presence* peer) { return peer == nullptr || peer->core() == core; }))
        return true;
    // Those who are waited for may wait in turn for somebody here who has not come yet.
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
    if (!moved) sleeper_.sleep(polled_, deadline_.left(longest_sleep));
    disarm();
}

void Executor::check() {
    if (under_way_.front()->complete()) return;
    const Request& request = under_way_.front()->request();
    const auto now = Clock::now();
    if (!timed_) {
        timed_ = true;
        began_ = asked_ = now;
        deadline_ = Deadline(request.timeout);
    }
    if (closing_.load(std::memory_order_acquire)) {
        throw Error(ErrorKind::aborted,
                    request.call.describe() + " was given up: this communicator is being closed");
    }
    if (now - asked_ >= longest_sleep) {
        asked_ = now;
        if (request.interrupted != nullptr && *request.interrupted && (*request.interrupted)()) {
            throw Error(ErrorKind::interrupted, request.call.describe() + " was interrupted");
        }
    }
    std::vector<int> peers = waiting_for();
    const auto is_lost = [&](int peer) {
        if (peer == request.operation->program().rank) return true;  // it waits here, and sends nothing
        Link* const link = request.links[static_cast<std::size_t>(peer)];
        return link != nullptr && link->lost() != nullptr;
    };
    // Where any one will do, those that are there do.
    const bool others =
        under_way_.front()->task().waits_for_any() && !std::all_of(peers.begin(), peers.end(), is_lost);
    for (const int peer : peers) {
        if (others) break;
        Link* link = request.links[static_cast<std::size_t>(peer)];
        const char* why = link == nullptr ? nullptr : link->lost();
        if (why == nullptr) continue;
        // What it sent before it went still counts.
        while (pass()) {
        }
        peers = waiting_for();
        if (std::find(peers.begin(), peers.end(), peer) == peers.end()) return;
        // It may have gone because ranks disagree; then that is the cause, here as there.
        look_for_other_calls();
        link->throw_lost(request.call, why);
    }
    const bool waits_for_itself = peers == std::vector{request.operation->program().rank};
    if (waits_for_itself && request.interrupted != nullptr && under_way_.size() == 1) {
        throw Error(
            ErrorKind::invalid,
            "this rank waits for a message from itself that it has not sent: send first, or receive in "
            "the background");
    }
    if (deadline_.passed()) throw_timeout(std::move(peers));
}

void Executor::throw_timeout(std::vector<int> peers) const {
    std::array<char, 32> elapsed{};
    std::snprintf(elapsed.data(), elapsed.size(), "%.1f s", seconds_since(began_));
    throw Error(ErrorKind::op_timeout,
                under_way_.front()->request().call.describe() + " timed out after " + elapsed.data() +
                    ", waiting for " + (under_way_.front()->waits_for_links() ? "a connection to " : "") +
                    name_ranks(peers),
                peers);
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
