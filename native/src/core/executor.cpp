#include "core/executor.hpp"

#include <sched.h>

#include <algorithm>

#include "engine/generalized.hpp"
#include "schedule/program.hpp"

namespace collectives {

namespace {

// The clock is read once in so many passes that move something.
constexpr unsigned passes_per_check = 64;
// The least speed at which ranks that run one after the other process an operation's data.
constexpr std::uint64_t bytes_per_microsecond = 8'000;

// While it exists, this rank may read memory that peers in its process have announced, see Link::abandon.
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

Executor::Executor(Settings settings, Engines engines, const Surroundings& surroundings, Recorder& recorder,
                   Sleeper& sleeper, Health& health, const std::atomic<bool>& closing)
    : settings_(settings),
      recorder_(recorder),
      sleeper_(sleeper),
      health_(health),
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
    presences_.clear();
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
    disarm();  // the new operation may need another kind of sleep
    std::unique_ptr<InFlight> one;
    if (idle_.empty()) {
        one = std::make_unique<InFlight>();
    } else {
        one = std::move(idle_.back());
        idle_.pop_back();
    }
    Request& wanted = one->take(request);
    const ResultStores::Work work{&operation.program(), request.is_in_place() ? 0 : operation.in_bytes(),
                                  operation.out_bytes()};
    const ResultStores::Turn turn = results_.next(work, operation.call_bytes());
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
    end_wait();
    const std::uint64_t now = just_looked_ != 0 ? just_looked_ : ticks::now();
    just_looked_ = 0;
    record_begun(wanted, name_of(row, wanted), now);
    one->begin(engine, std::move(task), under_way_);
    if (disagreement) one->fail(std::move(disagreement));
    times_.push_back({now, waited_, false, false, false});
    under_way_.push_back(std::move(one));
    return *under_way_.back();
}

const char* Executor::name_of(const Row& row, const Request& request) {
    return request.generalized == nullptr ? row.engine->name() : request.generalized->engine();
}

std::vector<EngineChoice> Executor::explain(const Request& request) const {
    std::vector<EngineChoice> found;
    for (const Row& row : engines_) found.push_back({row.engine->name(), row.engine->refuses(request)});
    return found;
}

void Executor::hold(InFlight& one, bool waits_for_links) {
    one.hold(waits_for_links);
    if (waits_for_links) {
        recorder_.hold(one.request().record);
        // Its record begins again when it continues, so the clock is read when it first moves.
        for (std::size_t i = 0; i < under_way_.size(); ++i) times_[i].tried |= under_way_[i].get() == &one;
    } else {
        recorder_.resume(one.request().record);
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
        recorder_.finish(request.record, name_of(engines_[one->engine()], request), traffic.sent,
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

std::optional<Error> Executor::find_error(FunctionRef<bool(const Error&)> test) const {
    for (const auto& one : under_way_) {
        if (!one->error()) continue;
        try {
            std::rethrow_exception(one->error());
        } catch (const Error& error) {
            if (test(error)) return error;
        } catch (...) {
        }
    }
    return std::nullopt;
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

bool Executor::is_called() {
    just_looked_ = 0;
    if (attention_.load(std::memory_order_relaxed) && attention_.exchange(false)) return true;
    if (under_way_.front()->error()) std::rethrow_exception(under_way_.front()->error());
    return false;
}

void Executor::note_moves(unsigned& passes) {
    end_wait();
    if (new_moves_) record_first();
    disarm();
    backoff_.reset();
    needed_.reset();
    if (++passes % passes_per_check == 0) check();
}

bool Executor::work() {
    unsigned passes = 0;
    while (!under_way_.front()->complete()) {
        if (is_called()) return false;
        if (pass()) {
            note_moves(passes);
            continue;
        }
        if (waits_since_ == 0) begin_wait();
        wait();
    }
    disarm();
    return true;
}

Executor::Stop Executor::work_unless_idle(std::chrono::nanoseconds patience) {
    unsigned passes = 0;
    Clock::time_point idle_from{};
    while (!under_way_.front()->complete()) {
        if (is_called()) return Stop::attention;
        if (pass()) {
            idle_from = {};
            note_moves(passes);
            continue;
        }
        if (waits_since_ == 0) begin_wait();
        const Clock::time_point now = Clock::now();
        if (idle_from == Clock::time_point{}) idle_from = now;
        if (now - idle_from > patience) return Stop::idle;
        pause();
    }
    disarm();
    return Stop::complete;
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

}  // namespace collectives
