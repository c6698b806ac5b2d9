// The part of a group that issues operations on device memory, which streams order.
#include <algorithm>
#include <iterator>
#include <thread>

#include "core/group.hpp"

namespace collectives {

namespace {
// While this rank waits for others in a step that only an engine knows.
constexpr auto asks_caller_after = std::chrono::milliseconds(50);
// What a rank that has left has completed is complete on the others within this time.
constexpr auto completes_within = std::chrono::seconds(1);
}  // namespace

StreamWatch::Owner Group::stream_owner() {
    return {.why_ended = [this](StreamWork& work) { return why_ended(work); },
            .break_with =
                [this](const Error& error) {
                    const std::unique_lock running(running_, std::try_to_lock);
                    if (!running.owns_lock()) return is_broken_.load(std::memory_order_acquire);
                    break_with(error);
                    return true;
                },
            .condemn = [this](const Error& error) { condemn(error); }};
}

std::optional<Error> Group::why_ended(StreamWork& work) {
    if (is_broken_.load(std::memory_order_acquire)) return broken_;
    const auto now = Clock::now();
    if (!work.vigil) {
        const double spent = std::chrono::duration<double>(now - work.began).count();
        work.vigil.emplace(std::max(0.0, work.timeout - spent), identity_.rank, now);
    }
    work.vigil->look(health_, work.collective(), work.fingerprint, now);
    const bool is_message = !work.peers.empty();
    const Cause* const cause = health_.cause();
    const auto error = [&] { return cause->error(work.call ? &*work.call : nullptr); };
    if (cause != nullptr) {
        const bool lost = cause->kind == ErrorKind::peer_lost && !is_message;  // every rank takes part
        if (lost || (work.call && cause->ends(*work.call, work.peers, work.began, now))) return error();
    }
    std::vector<int> left = health_.left();
    if (is_message) std::erase_if(left, [&](int rank) { return !std::ranges::count(work.peers, rank); });
    if (!left.empty()) {
        if (!work.left_since) work.left_since = now;
        if (now - *work.left_since >= completes_within) {
            if (cause != nullptr) return error();  // it has given up in a later call, and then left
            const std::string has = left.size() == 1 ? " has" : " have";
            return Error(ErrorKind::peer_lost,
                         name_ranks(left) + has + " left in order, and not completed " + work.describe(),
                         left);
        }
    }
    if (const std::optional<std::string> failure = streams_.failure()) {
        return Error(ErrorKind::aborted, work.describe() + " failed: " + *failure);
    }
    if (!work.vigil->deadline().passed()) return std::nullopt;
    const Call* const call = work.collective();
    std::vector<int> late = call != nullptr ? health_.late(call->sequence) : work.peers;
    std::string awaited = name_ranks(late);
    if (call != nullptr)
        awaited += std::string(", which ") + (late.size() == 1 ? "has" : "have") + " not begun it";
    if (late.empty()) {
        late = {identity_.rank};
        awaited = "the stream on rank " + std::to_string(identity_.rank) +
                  ", or for ranks whose streams have not come so far";
    }
    return Error(
        ErrorKind::op_timeout,
        work.describe() + " timed out after " + seconds_text(now - work.began) + ", waiting for " + awaited,
        late);
}

std::unique_lock<std::mutex> Group::lock_in_order(const Interrupted& interrupted) {
    while (true) {
        {
            std::unique_lock lock(queue_);
            while (last_started_ != nullptr && !last_started_->done) {
                finished_.wait_for(lock, look_for_signals);
                if (last_started_->done || !interrupted) continue;
                lock.unlock();
                const bool stop = interrupted();
                lock.lock();
                if (stop) throw Error(ErrorKind::interrupted, "waiting was interrupted; nothing was issued");
            }
        }
        std::unique_lock running(running_);
        const std::lock_guard lock(queue_);
        if (works_.empty()) return running;
    }
}

Error Group::named(const Error& error) const {
    const bool is_here = error.kind() == ErrorKind::transport_unavailable ||
                         error.kind() == ErrorKind::aborted || error.kind() == ErrorKind::invalid;
    return is_here && health_.cause() == nullptr && !closing_ ? of_rank(identity_.rank, error) : error;
}

std::shared_ptr<StreamWork> Group::issue(const char* engine, std::span<const Operation* const> operations,
                                         std::unique_ptr<StreamTask> task, double timeout,
                                         const Interrupted& interrupted) {
    const std::unique_lock running = lock_in_order(interrupted);
    streams_.write_records();
    if (const std::optional<Error> why = streams_.why_ended()) break_with(*why);
    // What other ranks have sent before is of no use here, so no loss is overlooked.
    if (const Cause* const cause = health_.cause(); cause != nullptr && !is_broken_) {
        if (operations.empty()) {
            break_with(cause->error());
        } else {
            const Call call = peek_call(*operations.front());
            break_with(cause->error(&call));
        }
    }
    try {
        throw_if_unusable(operations.empty() ? nullptr : operations.front());
    } catch (const Error&) {
        // Replays of graphs, of which there are no records, may wait for ranks that are gone.
        if (is_broken_.load(std::memory_order_acquire) && !streams_.why_ended()) {
            streams_.end_all(*broken_);
            streams_.write_records();
        }
        throw;
    }
    auto work = std::make_shared<StreamWork>();
    work->engine = engine;
    work->task = std::move(task);
    work->timeout = timeout;
    const std::uint64_t now = ticks::now();
    std::vector<Request> wanted;
    for (const Operation* const operation : operations) {
        wanted.push_back(request(*operation, nullptr, nullptr, timeout));
        const Request& one = wanted.back();
        work->call = one.call;
        work->fingerprint = one.fingerprint;
        if (one.call.is_message())
            std::ranges::copy(operation->program().peers, std::back_inserter(work->peers));
        work->records.push_back(
            recorder_.add(one.call, Executor::way_of(*operation), now, work->engine, now, one.fingerprint));
    }
    try {
        for (const Request& one : wanted) executor_.publish(one);
        streams_.add(work);
        work->task->issue();
    } catch (const Error& error) {
        const Error cause = streams_.why_ended().value_or(first_cause(named(error)));
        break_with(cause);
        streams_.end_all(*broken_);
        streams_.write_records();
        throw *broken_;
    }
    work->is_issued.store(true, std::memory_order_release);
    return work;
}

bool Group::wait(const StreamWork& work, double timeout, const Interrupted& interrupted) {
    return streams_.wait(work, timeout, interrupted);
}

void Group::join(const std::string& what, const std::string& cure, const MakeStreamEngine& make,
                 double timeout, const Interrupted& interrupted) {
    const std::unique_lock running = lock_in_order(interrupted);
    throw_if_unusable();
    const auto began = Clock::now();
    const Deadline deadline(timeout);
    auto asked = began;
    const auto patience = [&] {
        const auto now = Clock::now();
        if (closing_) throw Error(ErrorKind::aborted, "this communicator is being closed");
        if (const Cause* const cause = health_.cause()) throw cause->error();
        if (deadline.passed()) {
            throw Error(ErrorKind::op_timeout, what + " was not complete after " + seconds_text(now - began) +
                                                   ": a rank did not come, or cannot be reached" + cure);
        }
        if (!interrupted || now - asked < asks_caller_after) return;
        asked = now;
        if (interrupted()) throw Error(ErrorKind::interrupted, "making " + what + " was interrupted");
    };
    try {
        streams_.use(make(patience));
    } catch (const Error& error) {
        const Error cause = first_cause(named(error));
        break_with(cause);
        throw cause;
    }
}

}  // namespace collectives
