#include "core/stream_watch.hpp"

#include <algorithm>

#include "base/ticks.hpp"

namespace collectives {

using namespace std::chrono_literals;

namespace {

// How often the watching thread looks, which is often enough for a Vigil.
constexpr auto watch_interval = 10ms;
// The watching thread ends if there is nothing to watch for this time.
constexpr auto watch_idle = 1s;
// A thread that runs operations notices within this time that it should stop.
constexpr auto stops_within = 200ms;
// A waiting thread looks so often without sleeping, then sleeps from `first_nap` up to `longest_nap`.
constexpr int looks_before_nap = 2000;
constexpr auto first_nap = 20us;
constexpr auto longest_nap = 500us;

}  // namespace

void StreamWatch::use(std::shared_ptr<StreamEngine> engine) {
    if (engine == nullptr) return;
    const std::lock_guard lock(mutex_);
    engines_.push_back(std::move(engine));
}

std::vector<std::shared_ptr<StreamEngine>> StreamWatch::engines() const {
    const std::lock_guard lock(mutex_);
    return engines_;
}

std::optional<std::string> StreamWatch::failure() const {
    for (const auto& engine : engines()) {
        if (std::optional<std::string> found = engine->failure()) return found;
    }
    return std::nullopt;
}

void StreamWatch::abort_engines() const {
    for (const auto& engine : engines()) engine->abort();
}

void StreamWatch::add(std::shared_ptr<StreamWork> work) {
    const std::lock_guard lock(mutex_);
    if (stop_) throw Error(ErrorKind::aborted, "this communicator is closed");
    if (why_) throw *why_;
    under_way_.push_back(std::move(work));
    if (serving_) return;
    if (thread_.joinable()) thread_.join();  // it has ended after `watch_idle`
    serving_ = true;
    thread_ = std::thread([this] { serve(); });
}

void StreamWatch::serve() {
    Lock lock(mutex_);
    auto last_busy = Clock::now();
    while (!stop_) {
        changed_.wait_for(lock, watch_interval);
        collect(lock);
        if (!over_.empty()) {
            // Whoever runs operations holds `running_` and then needs `mutex_`, so it is only tried here.
            const std::unique_lock running(running_, std::try_to_lock);
            if (running.owns_lock()) {
                lock.unlock();
                write_records();
                lock.lock();
            }
        }
        const auto now = Clock::now();
        if (!under_way_.empty() || !over_.empty()) last_busy = now;
        if (now - last_busy > watch_idle) break;
        if (under_way_.empty() || why_) continue;
        const std::shared_ptr<StreamWork> first = under_way_.front();
        lock.unlock();
        const std::optional<Error> why = owner_.why_ended(*first);
        lock.lock();
        // It may have become complete meanwhile.
        if (!why || stop_ || why_ || first->is_complete()) continue;
        why_ = *why;
        doom_all(lock);
        lock.unlock();
        bool told = owner_.break_with(*why);
        abort_engines();
        for (const auto until = Clock::now() + stops_within; !told && Clock::now() < until;) {
            std::this_thread::sleep_for(1ms);
            told = owner_.break_with(*why);
        }
        if (!told) owner_.condemn(*why);
        lock.lock();
        fail_all(lock, *why);
    }
    serving_ = false;
}

void StreamWatch::collect(const Lock&) {
    // Operations on different streams may be complete in any order.
    std::erase_if(under_way_, [&](const std::shared_ptr<StreamWork>& work) {
        if (!work->is_complete()) return false;
        note_over(*work, std::nullopt);
        return true;
    });
}

void StreamWatch::note_over(const StreamWork& work, const std::optional<Error>& error) {
    for (const std::uint64_t record : work.records)
        over_.push_back({record, work.engine, error, ticks::now()});
}

void StreamWatch::doom_all(const Lock&) {
    std::erase_if(under_way_, [&](const std::shared_ptr<StreamWork>& work) {
        work->is_doomed.store(true, std::memory_order_seq_cst);
        // Only what was complete before that counts.
        if (!work->is_issued.load(std::memory_order_acquire) || !work->task->complete()) return false;
        work->is_doomed.store(false, std::memory_order_release);
        note_over(*work, std::nullopt);
        return true;
    });
}

void StreamWatch::fail_all(const Lock&, const Error& error) {
    for (const auto& work : under_way_) {
        note_over(*work, error);
        work->error = error;
        work->has_failed.store(true, std::memory_order_release);
    }
    under_way_.clear();
    changed_.notify_all();
}

void StreamWatch::end_all(const Error& error) {
    Lock lock(mutex_);
    if (!why_) why_ = error;
    doom_all(lock);
    lock.unlock();
    abort_engines();
    lock.lock();
    fail_all(lock, *why_);
}

void StreamWatch::write_records() {
    std::vector<Over> over;
    {
        const Lock lock(mutex_);
        collect(lock);
        over.swap(over_);
    }
    for (const Over& one : over) {
        if (one.error) {
            recorder_.fail(one.record, one.error->what(), one.at);
        } else {
            recorder_.finish(one.record, one.engine, 0, 0, one.at);
        }
    }
}

std::optional<Error> StreamWatch::why_ended() {
    const std::lock_guard lock(mutex_);
    return why_;
}

std::optional<std::uint64_t> StreamWatch::oldest() {
    const std::lock_guard lock(mutex_);
    for (const auto& work : under_way_) {
        if (const Call* const call = work->collective()) return call->sequence;
    }
    return std::nullopt;
}

bool StreamWatch::wait(const StreamWork& work, double timeout,
                       const std::function<bool()>& interrupted) const {
    const Deadline deadline(timeout);
    auto asked = Clock::now();
    std::chrono::nanoseconds nap = first_nap;
    for (int looks = 0; !is_done(work); ++looks) {
        if (looks < looks_before_nap) continue;
        if (deadline.passed()) return false;
        std::this_thread::sleep_for(std::min(nap, deadline.left(nap)));
        nap = std::min<std::chrono::nanoseconds>(2 * nap, longest_nap);
        const auto now = Clock::now();
        if (now - asked < look_for_signals) continue;
        asked = now;
        if (interrupted && interrupted()) {
            throw Error(ErrorKind::interrupted, "waiting was interrupted; the operation goes on");
        }
    }
    if (work.has_failed.load(std::memory_order_acquire)) throw *work.error;
    return true;
}

bool StreamWatch::close(bool is_sound) {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
        changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
    Lock lock(mutex_);
    if (engines_.empty()) return false;
    doom_all(lock);
    const bool is_idle = under_way_.empty();
    const bool all_well = is_sound && is_idle && !why_;
    lock.unlock();
    if (all_well) {
        for (const auto& engine : engines()) engine->close();
    } else {
        abort_engines();
    }
    lock.lock();
    fail_all(lock, why_.value_or(Error(ErrorKind::aborted, "this communicator was closed meanwhile")));
    return !is_idle;
}

}  // namespace collectives
