// A group's progress thread, which runs operations that were started in the background.
#include <algorithm>
#include <utility>

#include "core/group.hpp"

namespace collectives {

namespace {

// The progress thread ends if no operation is started for this time; starting it again takes less than 0.1
// ms.
constexpr auto idle_time = std::chrono::seconds(1);

}  // namespace

std::shared_ptr<Work> Group::start(std::shared_ptr<const Operation> operation, std::byte* in, std::byte* out,
                                   double timeout, bool joined, Transfer* transfer) {
    auto work = std::make_shared<Work>();
    work->operation = std::move(operation);
    work->in = in;
    work->out = out;
    work->timeout = timeout;
    work->joined = joined;
    work->transfer = transfer;
    return start(std::move(work));
}

std::shared_ptr<Work> Group::start_generalized(std::shared_ptr<const Operation> agreement, std::byte* in,
                                               std::byte* out, double timeout, const std::string& engine) {
    auto work = std::make_shared<Work>();
    work->operation = std::move(agreement);
    work->in = in;
    work->out = out;
    work->timeout = timeout;
    work->generalized = std::make_shared<GeneralizedRequest>(engine, [this] { executor_.call_attention(); });
    return start(std::move(work));
}

std::shared_ptr<Work> Group::start(std::shared_ptr<Work> work) {
    work->queued = ticks::now();
    const std::lock_guard lock(queue_);
    if (stop_) throw Error(ErrorKind::aborted, "this communicator is closed");
    works_.push_back(work);
    last_started_ = work;
    if (!serving_) {
        if (progress_.joinable()) progress_.join();  // it has ended after `idle_time`
        serving_ = true;
        progress_ = std::thread([this] { serve(); });
    }
    if (busy_.exchange(true)) {
        executor_.call_attention();
    } else {
        queued_.notify_one();
    }
    return work;
}

void Group::serve() {
    std::unique_lock lock(queue_);
    while (true) {
        queued_.wait_for(lock, idle_time, [&] { return stop_ || !works_.empty(); });
        if (works_.empty()) {
            serving_ = false;
            return;
        }
        lock.unlock();
        {
            const std::lock_guard running(running_);
            drive();
        }
        lock.lock();
        busy_.store(!works_.empty(), std::memory_order_release);
    }
}

void Group::drive() {
    Works under_way;
    while (true) {
        take_works(under_way);
        if (under_way.empty()) return;
        try {
            release_linked();
            if (!executor_.work()) continue;
            retire();
            finish(under_way, std::nullopt);
        } catch (const Error& error) {
            fail(under_way, error);
        } catch (const std::exception& error) {
            fail(under_way, Error(ErrorKind::aborted, error.what()));
        }
    }
}

void Group::fail(Works& under_way, const Error& error) {
    if (error.kind() == ErrorKind::invalid) {
        executor_.record_failure_of_oldest(error.what());
        retire();
        finish(under_way, error);
        return;
    }
    finish(under_way, give_up(error));
    while (!under_way.empty()) finish(under_way, broken());
}

void Group::take_works(Works& under_way) {
    while (true) {
        {
            const std::lock_guard lock(queue_);
            if (works_.empty()) return;
            if (under_way.size() >= most_at_a_time && !works_.front()->joined) return;
            under_way.push_back(works_.front());
            works_.pop_front();
        }
        try {
            // If other operations are in progress, the group can be used, and an error of theirs ends this
            // one.
            Work& work = *under_way.back();
            if (under_way.size() == 1) throw_if_unusable(work.operation.get());
            Request wanted = request(*work.operation, work.in, work.out, work.timeout);
            wanted.receipt = &work.receipt;
            wanted.transfer = work.transfer;
            wanted.queued = work.queued;
            wanted.generalized = work.generalized.get();
            InFlight& added = executor_.add(wanted);
            executor_.hold(added, true);
            unlinked_.push_back(&added);
        } catch (const Error& error) {
            const std::shared_ptr<Work> work = std::move(under_way.back());
            under_way.pop_back();
            finish(*work, error);
        }
    }
}

void Group::release_linked() {
    if (unlinked_.empty()) return;
    executor_.check();  // this may be called over and over
    const bool sends_to_itself = executor_.any_of(
        [&](const InFlight& one) { return !one.complete() && is_to_itself(*one.request().operation); });
    std::erase_if(unlinked_, [&](InFlight* one) {
        const Operation& operation = *one->request().operation;
        const std::vector<int>& peers = operation.program().peers;
        try {
            if (operation.is_open()) {
                const bool all = links_.seek_any(peers, sends_to_itself);
                executor_.hold(*one, false);  // it continues, although some links are missing
                return all;
            }
            if (!links_.seek(peers)) return false;
            executor_.hold(*one, false);
        } catch (...) {
            one->fail(std::current_exception());
        }
        return true;
    });
    executor_.note_busy();
}

void Group::retire() {
    std::erase(unlinked_, &executor_.oldest());
    executor_.retire();
}

void Group::finish(Works& under_way, std::optional<Error> error) {
    const std::shared_ptr<Work> oldest = std::move(under_way.front());
    under_way.pop_front();
    finish(*oldest, std::move(error));
}

void Group::finish(Work& work, std::optional<Error> error) {
    if (work.generalized) work.generalized->abandon();
    const std::lock_guard lock(queue_);
    work.error = std::move(error);
    work.done = true;
    finished_.notify_all();
}

bool Group::done(const Work& work) {
    const std::lock_guard lock(queue_);
    return work.done;
}

bool Group::wait(const Work& work, double timeout, const Interrupted& interrupted) {
    const Deadline deadline(timeout);
    std::unique_lock lock(queue_);
    while (!work.done) {
        if (deadline.passed()) return false;
        finished_.wait_for(lock, deadline.left(look_for_signals));
        if (!work.done && interrupted) {
            lock.unlock();
            const bool stop = interrupted();
            lock.lock();
            if (stop) throw Error(ErrorKind::interrupted, "waiting was interrupted; the operation goes on");
        }
    }
    if (work.error) throw *work.error;
    return true;
}

}  // namespace collectives
