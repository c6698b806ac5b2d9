#include "core/group.hpp"

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

#include "engine/registry.hpp"
#include "schedule/schedule_task.hpp"

namespace collectives {

namespace {

constexpr int spins_with_cores = 2000;
// The control plane reports the cause for which a peer has given up within this time.
constexpr auto cause_takes = std::chrono::milliseconds(500);
constexpr auto claim_takes = 2 * Control::settles;  // on a busy machine
// What is under way when a call is abandoned has this long to end by itself.
constexpr auto ends_within = std::chrono::seconds(1);
// Looks if ranks share cores: about the time in which each rank of another core has had its turn once.
constexpr int spins_with_others = 400;

Executor::Settings make_settings(const Group::Options& options) {
    Executor::Settings settings;
    settings.cache = options.cache;
    settings.spins = !options.oversubscribed ? spins_with_cores : options.home >= 0 ? spins_with_others : 0;
    settings.home = options.home;
    settings.shares_home = options.oversubscribed && options.home >= 0;
    return settings;
}

Setup make_setup(const Group::Options& options, const Surroundings& surroundings) {
    Setup setup;
    setup.rank = options.identity.rank;
    setup.size = options.identity.size;
    setup.segment = options.segment;
    setup.slice = settings_for(surroundings).slice;
    setup.sockets = options.sockets;
    setup.oversubscribed = options.crowded;
    setup.large_maps = options.heap;
    setup.host = options.host;
    setup.rendezvous = options.rendezvous;
    return setup;
}

// Whether this rank itself has found that ranks called different operations.
constexpr auto is_found_disagreement = [](const Error& error) {
    return error.kind() == ErrorKind::desync && error.finder() == Finder::this_rank;
};

}  // namespace

Group::Group(Options options)
    : identity_(options.identity),
      fills_core_(options.home >= 0 && !options.oversubscribed),
      surroundings_(options.segment, options.crowded),
      executor_(make_settings(options), make_engines(surroundings_), surroundings_, recorder_, *sleeper_,
                health_, closing_),
      sent_(static_cast<std::size_t>(identity_.size), 0),
      received_(static_cast<std::size_t>(identity_.size), 0),
      links_(options.job ? options.job : std::make_shared<Job>(), identity_, options.job_ranks,
             make_setup(options, surroundings_), surroundings_, executor_, sleeper_, health_, recorder_,
             closing_) {}

void Group::throw_if_unusable(const Operation* operation) {
    if (closed_ || closing_) throw Error(ErrorKind::aborted, "this communicator is closed");
    if (is_broken_.load(std::memory_order_acquire)) throw *broken_;
    const Cause* const cause = health_.cause();
    if (cause == nullptr || (operation != nullptr && !cause->forbids(peek_call(*operation)))) return;
    break_with(cause->error());
    throw *broken_;
}

std::uint64_t Group::first_incomplete() {
    const bool some = executor_.under_way() > 0 && !executor_.oldest().request().call.is_message();
    const std::uint64_t on_host = some ? executor_.oldest().request().call.sequence : sequence_;
    return std::min(on_host, streams_.oldest().value_or(sequence_));
}

void Group::break_with(const Error& cause) {
    if (broken_) return;
    if (cause.kind() == ErrorKind::interrupted) {
        broken_.emplace(ErrorKind::aborted,
                        std::string("this communicator can't be used any more: ") + cause.what());
    } else {
        broken_.emplace(cause);
    }
    is_broken_.store(true, std::memory_order_release);
    const Cause* const known = health_.cause();
    if (known == nullptr || known->is_untold) links_.report_broken(cause, first_incomplete());
    const bool is_cut_off = known != nullptr && !known->is_shared;
    const bool lost = cause.kind() == ErrorKind::peer_lost && cause.ranks().size() == 1 && !is_cut_off;
    links_.shut_down(lost ? std::optional(cause.ranks().front()) : std::nullopt);
}

void Group::connect(const std::vector<int>& peers, double timeout, const Interrupted& interrupted) {
    const std::lock_guard lock(running_);
    throw_if_unusable();
    try {
        links_.open(peers, timeout, interrupted);
    } catch (const Error& error) {
        if (error.kind() == ErrorKind::invalid) throw;
        const Error cause = first_cause(error);
        break_with(cause);
        throw cause;
    }
}

Call Group::peek_call(const Operation& operation) const {
    Call call = operation.call();
    call.epoch = identity_.epoch;
    if (!call.is_message()) {
        call.sequence = operation.part() == Operation::Part::other ? sequence_ - 1 : sequence_;
        return call;
    }
    // A message between two ranks: both sides count their messages. If several ranks may send, the first of
    // them counts.
    const auto& step = operation.program().steps.at(0);
    const auto peer = static_cast<std::size_t>(step.peers.at(0));
    call.sequence = step.kind == StepKind::send ? sent_[peer] : received_[peer];
    return call;
}

Call Group::next_call(const Operation& operation) {
    const Call call = peek_call(operation);
    if (!call.is_message()) {
        if (operation.part() != Operation::Part::other) ++sequence_;
        return call;
    }
    const auto& step = operation.program().steps.at(0);
    const auto peer = static_cast<std::size_t>(step.peers.at(0));
    ++(step.kind == StepKind::send ? sent_ : received_)[peer];
    return call;
}

std::uint32_t Group::fingerprint(const Operation& operation, const Call& call) {
    if (call.is_message()) return call.fingerprint();
    // The fingerprint covers earlier calls, because two ranks that only send in one call compare their calls
    // only in a later one. All messages of one collective have the same history.
    if (operation.part() == Operation::Part::other) return call.fingerprint(before_);
    before_ = history_;
    history_ = call.fingerprint(before_);
    return history_;
}

Request Group::request(const Operation& operation, std::byte* in, std::byte* out, double timeout) {
    const Call call = next_call(operation);
    return {.operation = &operation,
            .call = call,
            .fingerprint = fingerprint(operation, call),
            .in = in,
            .out = out,
            .links = links_.by_rank(),
            .timeout = timeout};
}

bool Group::is_to_itself(const Operation& operation) const {
    if (!operation.call().is_message()) return false;
    const Step& step = operation.program().steps.at(0);
    return step.kind == StepKind::send && step.peers.at(0) == identity_.rank;
}

bool Group::sends_to_itself(std::span<const Item> items) const {
    return std::ranges::any_of(items, [&](const Item& item) { return is_to_itself(*item.operation); });
}

void Group::run_locked(std::span<const Item> items, double timeout, const Interrupted& interrupted,
                       CallerLock* lock) {
    for (const Item& item : items) throw_if_unusable(item.operation.get());
    const Operation* open = nullptr;      // an operation whose links may be opened while it waits
    std::uint64_t connecting = 0;         // the record of the first operation that waits for links
    const Item* first_of_them = nullptr;  // that operation
    try {
        for (const Item& item : items) {
            const std::vector<int>& peers = item.operation->program().peers;
            if (links_.are_there(peers)) continue;
            if (lock != nullptr) lock->release();
            if (first_of_them == nullptr) {
                first_of_them = &item;
                connecting = executor_.record_queued(*item.operation, peek_call(*item.operation));
            }
            if (item.operation->is_open()) {
                open = item.operation.get();
                links_.seek_any(peers, sends_to_itself(items));
            } else {
                const Call call = peek_call(*item.operation);
                links_.open(peers, timeout, interrupted, &call);
            }
        }
        for (const Item& item : items) {
            Request wanted = request(*item.operation, item.in, item.out, timeout);
            wanted.interrupted = &interrupted;
            wanted.lock = lock;
            wanted.receipt = item.receipt;
            wanted.transfer = item.transfer;
            if (&item == first_of_them) wanted.record = std::exchange(connecting, 0);
            executor_.add(wanted);
        }
        for (std::size_t i = 0; i < items.size(); ++i) {
            while (!executor_.work()) {
                if (open == nullptr) continue;
                executor_.check();
                links_.seek_any(open->program().peers, sends_to_itself(items));
                executor_.note_busy();
                executor_.notice_links();
            }
            executor_.retire();
        }
    } catch (const Error& error) {
        recorder_.fail(connecting, error.what(), ticks::now());
        if (error.kind() != ErrorKind::invalid) throw give_up(error);
        executor_.record_failure(error.what());
        executor_.clear();
        throw;
    } catch (const std::exception& error) {
        // Peers may be in the middle of these operations.
        recorder_.fail(connecting, error.what(), ticks::now());
        give_up(Error(ErrorKind::aborted, std::string("an operation failed: ") + error.what()));
        throw;
    }
}

Error Group::first_cause(const Error& error) {
    if (broken_) return *broken_;
    const bool is_own = error.kind() == ErrorKind::aborted || error.kind() == ErrorKind::interrupted;
    if (is_own || !health_.is_watched()) return error;
    // Nothing that others report says more, and they may have it from this rank.
    if (is_found_disagreement(error)) return error;
    if (const std::optional<Error> found = executor_.find_error(is_found_disagreement)) return *found;
    if (error.kind() == ErrorKind::desync) health_.wait_for_cause(cause_takes);
    // A peer that is gone may have given up because of another one: that is on its way.
    if (error.kind() == ErrorKind::peer_lost) {
        health_.wait_for_cause(error.ranks(), cause_takes, executor_.deadline());
        if (!health_.is_condemned()) {
            links_.claim(error, first_incomplete());
            health_.wait_for_cause(claim_takes);
        }
    }
    const Cause* const cause = health_.cause();
    if (cause == nullptr) return error;
    return cause->error(executor_.under_way() > 0 ? &executor_.oldest().request().call : nullptr);
}

Error Group::give_up(const Error& error) {
    const Error cause = first_cause(error);
    executor_.record_failure(cause.what());
    // Tell peers the reason before they can see that this rank has given up.
    break_with(cause);
    unlinked_.clear();
    if (executor_.give_up()) return cause;
    return {
        cause.kind(),
        std::string(cause.what()) +
            "; peers may still write to arrays that this rank was to receive: do not use these any more. "
            "Either a peer is stopped while it writes, or the kernel refuses private copies of arrays from "
            "Communicator.empty (ulimit -d, vm.overcommit_memory)",
        cause.ranks()};
}

void Group::abandon(const Error& error) {
    // Operations that are under way end as soon as the other ranks take part in them.
    if (break_within(ends_within, error)) return;
    // They do not: this ends them. Whoever runs them tells the other ranks why, or does so below.
    condemn(error);
    break_within(ends_within, error);
}

void Group::condemn(const Error& error) {
    Cause cause;
    cause.kind = error.kind();
    cause.ranks = error.ranks();
    cause.text = error.what();
    cause.is_untold = true;
    health_.condemn(std::move(cause));
}

bool Group::break_within(std::chrono::nanoseconds patience, const Error& error) {
    for (const auto until = Clock::now() + patience; Clock::now() < until;) {
        if (is_broken_.load(std::memory_order_acquire)) return true;
        if (const std::unique_lock running(running_, std::try_to_lock); running.owns_lock()) {
            if (closed_ || closing_) return true;
            if (under_way_.empty()) {
                break_with(error);
                return true;
            }
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
}

void Group::run(const std::shared_ptr<const Operation>& operation, std::byte* in, std::byte* out,
                double timeout, const Interrupted& interrupted, CallerLock* lock, Receipt* receipt) {
    const Item item{operation, in, out, receipt};
    run_all({&item, 1}, timeout, interrupted, lock);
}

void Group::run_all(std::span<const Item> items, double timeout, const Interrupted& interrupted,
                    CallerLock* lock) {
    if (!busy_.load(std::memory_order_acquire)) {
        std::unique_lock running(running_, std::try_to_lock);
        if (!running.owns_lock()) {
            if (lock != nullptr) lock->release();
            running.lock();
        }
        run_locked(items, timeout, interrupted, lock);
        return;
    }
    if (lock != nullptr) lock->release();
    std::vector<std::shared_ptr<Work>> works;
    for (const Item& item : items) {
        works.push_back(start(item.operation, item.in, item.out, timeout, !works.empty(), item.transfer));
    }
    for (std::size_t i = 0; i < items.size(); ++i) {
        wait(*works[i], std::numeric_limits<double>::infinity(), interrupted);
        if (items[i].receipt != nullptr) *items[i].receipt = works[i]->receipt;
    }
}

void Group::confirm(double grace) {
    const std::unique_lock lock(running_, std::try_to_lock);
    if (!lock.owns_lock() || closed_ || closing_ || is_broken_ || executor_.under_way() > 0) return;
    try {
        links_.compare_calls(grace);
    } catch (const Error& error) {
        throw give_up(error);
    }
}

std::vector<EngineChoice> Group::engines(const Operation& operation) {
    const std::lock_guard lock(running_);
    throw_if_unusable();
    Request wanted;
    wanted.operation = &operation;
    wanted.call = operation.call();
    wanted.links = links_.by_rank();
    return executor_.explain(wanted);
}

std::optional<Error> Group::broken() {
    return is_broken_.load(std::memory_order_acquire) ? broken_ : std::nullopt;
}

std::vector<Record> Group::records() {
    if (const std::unique_lock running(running_, std::try_to_lock); running.owns_lock()) {
        streams_.write_records();
    }
    std::vector<Record> found = recorder_.records();
    const std::lock_guard lock(queue_);
    for (const auto& work : works_) {
        Record record;
        record.call = work->operation->call();
        record.call.epoch = identity_.epoch;
        record.queued = work->queued;
        const Recorder::Way way = Executor::way_of(*work->operation);
        record.peer = way.peer;
        record.sends = way.sends;
        found.push_back(std::move(record));
    }
    return found;
}

void Group::close() {
    if (closing_.exchange(true)) return;
    sleeper_->ring();
    {
        const std::lock_guard lock(queue_);
        stop_ = true;
        queued_.notify_all();
    }
    if (progress_.joinable()) progress_.join();
    const bool is_sound = !is_broken_.load(std::memory_order_acquire) && !health_.is_condemned();
    const bool was_early = streams_.close(is_sound);
    const std::lock_guard lock(running_);
    // Other ranks wait in these operations, and no link tells them.
    if (was_early && !broken_ && !health_.is_condemned()) {
        links_.report_broken(
            Error(ErrorKind::aborted, "it was closed before its operations on its device were complete"),
            first_incomplete());
    }
    end_left_over();
    streams_.write_records();
    closed_ = true;
    links_.close();
    executor_.close();
    sleeper_->close();
    surroundings_.commons.clear();
}

}  // namespace collectives
