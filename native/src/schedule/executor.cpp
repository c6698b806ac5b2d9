#include "schedule/executor.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/error.hpp"
#include "shm/lost_slice.hpp"

namespace collectives {

using namespace std::chrono_literals;

namespace {

// While all goes well the clock is read once in so many passes.
constexpr unsigned passes_per_check = 64;
// Who waits for ranks on other cores asks again after so many looks: these may have got so far that it is
// somebody on its own core who is waited for.
constexpr unsigned looks_per_question = 4;
// What the caller keeps from other threads is let go of after so many looks, a microsecond or two.
constexpr int looks_while_held = 64;
// Signals and silent deaths are noticed this often.
constexpr auto longest_sleep = 50ms;
// How fast one rank after the other gets through an operation's data, at least.
constexpr std::uint64_t bytes_per_microsecond = 8'000;

// The time in which this rank reads what peers of its process have announced, see ShmLink::abandon.
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

std::chrono::microseconds work_of_others(const Operation& operation) {
    const std::uint64_t bytes = std::max(operation.in_bytes(), operation.out_bytes());
    const auto size = static_cast<std::uint64_t>(operation.program().size);
    return std::chrono::microseconds(bytes * size / bytes_per_microsecond);
}

}  // namespace

Executor::Executor(Settings settings, Recorder& recorder, Sleeper& sleeper, const std::atomic<bool>& closing)
    : settings_(settings),
      recorder_(recorder),
      sleeper_(sleeper),
      closing_(closing),
      backoff_(settings.spins, settings.home, settings.shares_home) {
    workshop_.slice = settings.slice;
    workshop_.copied = settings.copied;
    workshop_.results = ResultStores(settings.cache, settings.crowded);
    workshop_.crowded = settings.crowded;
}

void Executor::share(std::shared_ptr<Arena> arena) {
    workshop_.arena = std::move(arena);
    workshop_.arena->presence().settle(settings_.shares_home ? settings_.home : -1);
    workshop_.caster = std::make_unique<Caster>(workshop_.arena);
}

void Executor::close() {
    idle_.clear();
    workshop_.pool.reset();
    workshop_.boards.clear();
    workshop_.caster.reset();
    workshop_.arena.reset();
}

Run& Executor::add(const Request& request) {
    if (runs_.empty()) {
        backoff_.reset();
        backoff_.expect(work_of_others(request.operation->section(0)));
        if (tells_where()) {
            const auto now = Clock::now();
            workshop_.arena->presence().set_core(::sched_getcpu());
            workshop_.arena->presence().enter(now);
            backoff_.begin(now);
        }
        timed_ = false;
    }
    disarm();  // what it waits for may need another kind of sleep
    std::unique_ptr<Run> run;
    if (idle_.empty()) {
        run = std::make_unique<Run>(workshop_);
    } else {
        run = std::move(idle_.back());
        idle_.pop_back();
    }
    end_wait();
    const std::uint64_t now = just_looked_ != 0 ? just_looked_ : ticks::now();
    just_looked_ = 0;
    Request recorded = request;
    if (recorded.record == 0) {
        recorded.record =
            record_queued(*request.operation, request.call, request.queued != 0 ? request.queued : now);
    }
    run->begin(recorded, runs_);
    recorder_.start(recorded.record, request.call, run->engine(), now);
    times_.push_back({now, waited_, false, false, false});
    runs_.push_back(std::move(run));
    return *runs_.back();
}

std::uint64_t Executor::record_queued(const Operation& operation, const Call& call, std::uint64_t queued) {
    if (queued == 0) queued = ticks::now();
    if (!call.is_message()) return recorder_.add(call, -1, false, queued);
    const Step& step = operation.program().steps.at(0);
    const int peer = step.peers.size() == 1 ? step.peers[0] : -1;
    return recorder_.add(call, peer, step.kind == StepKind::send, queued);
}

void Executor::hold(Run& run, bool held) {
    run.hold(held);
    if (held) {
        recorder_.hold(run.request().record);
        // Its record begins anew when it goes on, so the clock is read when it first moves.
        for (std::size_t i = 0; i < runs_.size(); ++i) times_[i].tried |= runs_[i].get() == &run;
    } else {
        recorder_.resume(run.request().record);
    }
}

void Executor::record_failure(const std::string& why) {
    end_wait();
    const std::uint64_t now = ticks::now();
    for (const auto& run : runs_) recorder_.fail(run->request().record, why, now);
}

void Executor::record_failure_of_oldest(const std::string& why) {
    end_wait();
    recorder_.fail(runs_.front()->request().record, why, ticks::now());
}

void Executor::begin_wait() {
    waits_since_ = ticks::now();
    for (std::size_t i = 0; i < runs_.size(); ++i) {
        recorder_.wait(runs_[i]->request().record, waited_ - times_[i].waited_before, waits_since_);
    }
}

void Executor::end_wait() {
    if (waits_since_ == 0) return;
    just_looked_ = ticks::now();
    waited_ += just_looked_ - waits_since_;
    waits_since_ = 0;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
        recorder_.wait(runs_[i]->request().record, waited_ - times_[i].waited_before, 0);
    }
}

void Executor::record_first() {
    new_moves_ = false;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
        Times& times = times_[i];
        if (!times.moved || times.recorded) continue;
        times.recorded = true;
        if (times.tried && just_looked_ == 0) just_looked_ = ticks::now();
        recorder_.first(runs_[i]->request().record, times.tried ? just_looked_ : times.begun);
    }
}

void Executor::retire() {
    std::unique_ptr<Run> run = std::move(runs_.front());
    if (run->complete()) {
        const Request& request = run->request();
        Operation::Traffic traffic = request.operation->traffic();
        if (request.receipt != nullptr && request.receipt->source >= 0) {
            traffic.received = request.receipt->count * request.operation->unit();
        }
        recorder_.finish(request.record, run->engine(), traffic.sent, traffic.received,
                         just_looked_ != 0 ? just_looked_ : ticks::now());
    }
    just_looked_ = 0;
    runs_.erase(runs_.begin());
    times_.erase(times_.begin());
    for (const auto& later : runs_) later->forget(run.get());
    run->end();
    idle_.push_back(std::move(run));
    timed_ = false;
    if (runs_.empty() && tells_where()) workshop_.arena->presence().leave();
}

void Executor::clear() {
    disarm();
    while (!runs_.empty()) retire();
}

bool Executor::give_up() {
    for (const auto& run : runs_) run->abandon();
    bool alone = true;
    for (const auto& run : runs_) alone &= run->reclaim();
    clear();
    return alone;
}

void Executor::call_attention() {
    attention_.store(true, std::memory_order_seq_cst);
    sleeper_.ring();
}

bool Executor::work() {
    unsigned passes = 0;
    while (!runs_.front()->complete()) {
        just_looked_ = 0;
        if (attention_.load(std::memory_order_relaxed) && attention_.exchange(false)) return false;
        if (runs_.front()->error()) std::rethrow_exception(runs_.front()->error());
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
    const Reading reading(threads_ ? &workshop_.arena->header().passes : nullptr);
    bool moved = note(times_.front(), runs_.front()->pass());
    for (std::size_t i = 1; i < runs_.size(); ++i) {
        try {
            moved |= note(times_[i], runs_[i]->pass());
        } catch (...) {
            runs_[i]->fail(std::current_exception());
        }
    }
    return moved;
}

void Executor::wait() {
    if (armed_) {
        check();
        runs_.front()->look_for_other_calls();
        sleep();
        check();
        return;
    }
    if (!needed_) needed_ = settings_.shares_home && keeps_from_running();
    let_go_unless_soon();
    switch (backoff_.idle(*needed_)) {
        case Backoff::Next::look:
            if (settings_.shares_home && ++looks_ % looks_per_question == 0) needed_.reset();
            break;
        case Backoff::Next::look_late:
            look_into_lost_slice();
            [[fallthrough]];
        case Backoff::Next::look_anew:
            needed_.reset();
            if (tells_where()) {
                workshop_.arena->presence().set_core(::sched_getcpu());
                workshop_.arena->presence().mark_running(backoff_.looked());
            }
            break;
        case Backoff::Next::sleep:
            sleeper_.arm(
                std::any_of(runs_.begin(), runs_.end(), [](const auto& run) { return run->uses_sockets(); }));
            armed_ = true;
            for (const auto& run : runs_) run->set_asleep(true);
            break;
    }
}

void Executor::let_go_unless_soon() {
    Held* const held = runs_.front()->request().held;
    if (held != nullptr && !backoff_.spins_within(looks_while_held, *needed_)) held->let_go();
}

template <typename Predicate>
bool Executor::any_awaited(Predicate predicate) {
    return std::any_of(runs_.begin(), runs_.end(), [&](const auto& run) {
        return run->any_awaited([&](int peer) { return predicate(run->arena_of(peer)); }, awaited_);
    });
}

bool Executor::keeps_from_running() {
    const int core = ::sched_getcpu();
    // Of ranks that share no memory nothing is known, so they may be here.
    if (any_awaited([&](const Arena* arena) { return arena == nullptr || arena->presence().core() == core; }))
        return true;
    // Those who are waited for may wait in turn for somebody here who has not come yet.
    return runs_.front()->any_to_come([&](const Arena& arena) {
        return arena.presence().home() == settings_.home && arena.presence().core() == core;
    });
}

void Executor::look_into_lost_slice() {
    if (!tells_where()) return backoff_.preempted(-1);
    const int core = ::sched_getcpu();
    LostSlice slice(core, backoff_.lost_since(), backoff_.looked());
    const Run& run = *runs_.front();
    for (std::size_t rank = 0; rank < run.request().links.size(); ++rank) {
        const Arena* const arena = run.arena_of(static_cast<int>(rank));
        if (arena != nullptr) slice.add(arena->presence());
    }
    const auto excuses = [&](const Arena* arena) {
        return arena != nullptr && slice.is_excused(arena->presence());
    };
    const auto is_anyone = [](const Arena*) { return true; };
    const bool is_own = any_awaited(excuses) || (slice.is_excused_here() && !any_awaited(is_anyone));
    if (!slice.is_confirmed() && (slice.unseen() <= backoff_.slow() || is_own)) return;
    Presence& own = workshop_.arena->presence();
    own.note_preemption(core, backoff_.looked());
    backoff_.preempted(slice.refuge(own));
}

void Executor::disarm() {
    if (!armed_) return;
    for (const auto& run : runs_) run->set_asleep(false);
    sleeper_.disarm();
    armed_ = false;
}

void Executor::sleep() {
    awaited_.clear();
    polled_.clear();
    for (const auto& run : runs_) {
        run->awaited(awaited_);
        for (const Run::Awaited& awaited : awaited_) {
            const Link* on = run->request().links[static_cast<std::size_t>(awaited.peer)];
            if (on != nullptr) on->poll_for(awaited.sending, polled_);
        }
        awaited_.clear();
    }
    sleeper_.sleep(polled_, deadline_.left(longest_sleep));
    disarm();
}

void Executor::check() {
    if (runs_.front()->complete()) return;
    const Request& request = runs_.front()->request();
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
    const bool others = runs_.front()->is_open() && !std::all_of(peers.begin(), peers.end(), is_lost);
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
        runs_.front()->look_for_other_calls();
        link->throw_lost(request.call, why);
    }
    const bool waits_for_itself = peers == std::vector{request.operation->program().rank};
    if (waits_for_itself && request.interrupted != nullptr && runs_.size() == 1) {
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
                runs_.front()->request().call.describe() + " timed out after " + elapsed.data() +
                    ", waiting for " + (runs_.front()->held() ? "a connection to " : "") + name_ranks(peers),
                peers);
}

std::vector<int> Executor::waiting_for() {
    awaited_.clear();
    runs_.front()->awaited(awaited_);
    std::vector<int> peers;
    for (const Run::Awaited& awaited : awaited_) peers.push_back(awaited.peer);
    awaited_.clear();
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    return peers;
}

}  // namespace collectives
