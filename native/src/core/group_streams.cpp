// The part of a group that issues operations on device memory, which streams order.
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
            .condemn =
                [this](const Error& error) {
                    Cause cause;
                    cause.kind = error.kind();
                    cause.ranks = error.ranks();
                    cause.text = error.what();
                    health_.condemn(std::move(cause));
                }};
}

std::optional<Error> Group::why_ended(StreamWork& work) {
    if (is_broken_.load(std::memory_order_acquire)) return broken_;
    const auto now = Clock::now();
    if (!work.vigil) {
        const double spent = std::chrono::duration<double>(now - work.began).count();
        work.vigil.emplace(std::max(0.0, work.timeout - spent), identity_.rank, now);
    }
    work.vigil->look(health_, &work.call, work.fingerprint, now);
    if (const Cause* const cause = health_.cause()) {
        // Every rank takes part in such an operation.
        if (cause->kind == ErrorKind::peer_lost || cause->ends(work.call, {}, work.began, now)) {
            return cause->error(&work.call);
        }
    }
    if (const std::vector<int> left = health_.left(); !left.empty()) {
        if (!work.left_since) work.left_since = now;
        if (now - *work.left_since >= completes_within) {
            const std::string has = left.size() == 1 ? " has" : " have";
            return Error(ErrorKind::peer_lost,
                         name_ranks(left) + has + " left in order, and not completed " + work.call.describe(),
                         left);
        }
    }
    if (const std::optional<std::string> failure = streams_.engine()->failure()) {
        return Error(ErrorKind::aborted, work.call.describe() + " failed: " + *failure);
    }
    if (!work.vigil->deadline().passed()) return std::nullopt;
    std::vector<int> late = health_.late(work.call.sequence);
    std::string awaited =
        name_ranks(late) + ", which " + (late.size() == 1 ? "has" : "have") + " not begun it";
    if (late.empty()) {
        late = {identity_.rank};
        awaited = "the stream on rank " + std::to_string(identity_.rank) +
                  ", or for ranks whose streams have not come so far";
    }
    return Error(ErrorKind::op_timeout,
                 work.call.describe() + " timed out after " + seconds_text(now - work.began) +
                     ", waiting for " + awaited,
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

std::shared_ptr<StreamWork> Group::issue(const Operation& operation, std::unique_ptr<StreamTask> task,
                                         double timeout, const Interrupted& interrupted) {
    const std::unique_lock running = lock_in_order(interrupted);
    streams_.write_records();
    if (const std::optional<Error> why = streams_.why_ended()) break_with(*why);
    // What other ranks have sent before is of no use here, so no loss is overlooked.
    if (const Cause* const cause = health_.cause(); cause != nullptr && !is_broken_) {
        const Call call = peek_call(operation);
        break_with(cause->error(&call));
    }
    throw_if_unusable(&operation);
    auto work = std::make_shared<StreamWork>();
    Request wanted = request(operation, nullptr, nullptr, timeout);
    work->call = wanted.call;
    work->fingerprint = wanted.fingerprint;
    work->engine = streams_.engine()->name();
    work->task = std::move(task);
    work->timeout = timeout;
    const std::uint64_t now = ticks::now();
    work->record = recorder_.add(wanted.call, {}, now, work->engine, now, wanted.fingerprint);
    try {
        executor_.publish(wanted);
        streams_.add(work);
        work->task->issue();
    } catch (const Error& error) {
        const Error cause = streams_.why_ended().value_or(first_cause(error));
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

void Group::join(const MakeStreamEngine& make, double timeout, const Interrupted& interrupted) {
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
            throw Error(ErrorKind::op_timeout,
                        "NCCL's communicator was not complete after " + seconds_text(now - began) +
                            ": a rank did not come, or cannot be reached (NCCL_SOCKET_IFNAME)");
        }
        if (!interrupted || now - asked < asks_caller_after) return;
        asked = now;
        if (interrupted()) throw Error(ErrorKind::interrupted, "making NCCL's communicator was interrupted");
    };
    try {
        streams_.use(make(patience));
    } catch (const Error& error) {
        const Error cause = first_cause(error);
        break_with(cause);
        throw cause;
    }
}

}  // namespace collectives
