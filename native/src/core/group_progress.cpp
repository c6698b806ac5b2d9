// A group's progress thread, which runs operations that were started in the background.
#include <algorithm>
#include <utility>

#include "core/group.hpp"

namespace collectives {

namespace {

// The progress thread ends if no operation is started for this time; starting it again takes less than 0.1
// ms.
constexpr auto idle_time = std::chrono::seconds(1);

// A thread that starts an operation runs it while something moves, or has moved within this time, if the rank
// has no core for its progress thread. Two changes of threads take less, but a rank that is late comes soon.
constexpr auto helps_for = std::chrono::microseconds(150);

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
    {
        const std::lock_guard lock(queue_);
        if (stop_) throw Error(ErrorKind::aborted, "this communicator is closed");
        works_.push_back(work);
        last_started_ = work;
        if (busy_.exchange(true)) {
            executor_.call_attention();
            return work;
        }
        if (!fills_core_) {
            hand_over();
            return work;
        }
    }
    help();
    return work;
}

void Group::hand_over() {
    if (stop_) return;  // `close` ends what is left
    if (!serving_) {
        if (progress_.joinable()) progress_.join();  // it has ended after `idle_time`
        serving_ = true;
        progress_ = std::thread([this] { serve(); });
    }
    queued_.notify_one();
}

void Group::help() {
    bool left = false;
    {
        const std::unique_lock running(running_, std::try_to_lock);
        if (running.owns_lock()) {
            drive(helps_for);
            left = !under_way_.empty();
        }
    }
    const std::lock_guard lock(queue_);
    left_over_ |= left;
    if (left_over_ || !works_.empty()) {
        hand_over();
        executor_.call_attention();
    } else {
        busy_.store(false, std::memory_order_release);
    }
}

void Group::end_left_over() {
    const Error error(ErrorKind::aborted, "an operation was given up: this communicator is being closed");
    if (!under_way_.empty()) fail(error);
    Works left;
    {
        const std::lock_guard lock(queue_);
        left.swap(works_);
    }
    for (const std::shared_ptr<Work>& work : left) finish(*work, error);
}

void Group::serve() {
    std::unique_lock lock(queue_);
    while (true) {
        queued_.wait_for(lock, idle_time, [&] { return stop_ || left_over_ || !works_.empty(); });
        if (works_.empty() && !left_over_) {
            serving_ = false;
            return;
        }
        left_over_ = false;
        lock.unlock();
        {
            const std::lock_guard running(running_);
            drive();
        }
        lock.lock();
        busy_.store(left_over_ || !works_.empty(), std::memory_order_release);
    }
}

void Group::drive(std::optional<std::chrono::nanoseconds> patience) {
    while (true) {
        take_works();
        if (under_way_.empty()) return;
        try {
            release_linked();
            if (patience) {
                const Executor::Stop stop = executor_.work_unless_idle(*patience);
                if (stop == Executor::Stop::idle) return;
                if (stop == Executor::Stop::attention) continue;
            } else if (!executor_.work()) {
                continue;
            }
            retire();
            finish(std::nullopt);
        } catch (const Error& error) {
            fail(error);
        } catch (const std::exception& error) {
            fail(Error(ErrorKind::aborted, error.what()));
        }
    }
}

void Group::fail(const Error& error) {
    if (error.kind() == ErrorKind::invalid) {
        executor_.record_failure_of_oldest(error.what());
        retire();
        finish(error);
        return;
    }
    finish(give_up(error));
    while (!under_way_.empty()) finish(broken());
}

void Group::take_works() {
    while (true) {
        {
            const std::lock_guard lock(queue_);
            if (works_.empty()) return;
            if (under_way_.size() >= most_at_a_time && !works_.front()->joined) return;
            under_way_.push_back(works_.front());
            works_.pop_front();
        }
        try {
            // If other operations are in progress, the group can be used, and an error of theirs ends this
            // one.
            Work& work = *under_way_.back();
            if (under_way_.size() == 1) throw_if_unusable(work.operation.get());
            Request wanted = request(*work.operation, work.in, work.out, work.timeout);
            wanted.receipt = &work.receipt;
            wanted.transfer = work.transfer;
            wanted.queued = work.queued;
            wanted.generalized = work.generalized.get();
            InFlight& added = executor_.add(wanted);
            executor_.hold(added, true);
            unlinked_.push_back(&added);
        } catch (const Error& error) {
            const std::shared_ptr<Work> work = std::move(under_way_.back());
            under_way_.pop_back();
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

void Group::finish(std::optional<Error> error) {
    const std::shared_ptr<Work> oldest = std::move(under_way_.front());
    under_way_.pop_front();
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
