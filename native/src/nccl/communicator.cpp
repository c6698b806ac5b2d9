#include "nccl/communicator.hpp"

#include <chrono>
#include <system_error>
#include <thread>

#include "base/error.hpp"
#include "cuda/device.hpp"
#include "cuda/stream.hpp"

namespace collectives::nccl {

using namespace std::chrono_literals;

namespace {

// How often the state is asked for while ranks meet, which takes about half a second.
constexpr auto look_again = 1ms;
// The same while a call that does not block puts its work into a stream.
constexpr auto look_at_call = 5us;
// Calls that block return within this time once NCCL has been told to give up. If they do not, the
// communicator is freed under them, since otherwise nobody would ever be told why.
constexpr auto calls_return = 5s;
// NCCL frees a communicator within this time, unless other ranks are gone for which it waits.
constexpr auto freed_within = 10s;
// Where graphs hold operations of the communicator, NCCL frees it after the last graph, also in an abort. An
// abort has usually freed the streams within this time.
constexpr auto streams_freed_within = 1s;

}  // namespace

Communicator::Communicator(const Library& library, const UniqueId& id, const Member& member,
                           const Blocks& blocks, const Patience& patience)
    : library_(library),
      member_(member),
      context_(cuda::PrimaryContext::of(member.device)),
      signals_(std::make_shared<cuda::Signals>(context_)) {
    const Api& api = library_.api();
    const cuda::Current current(*context_);
    const cuda::RelaxedCapture relaxed;  // another thread may be capturing a graph
    Config config;
    config.blocking = 0;
    config.split_share = 0;  // so that the first communicator can be freed without the second
    if (blocks.least > 0) config.min_ctas = blocks.least;
    if (blocks.most > 0) config.max_ctas = blocks.most;
    const std::size_t free_before = cuda::free_memory();
    Handle first = nullptr;
    Handle second = nullptr;
    try {
        const Result started = api.init_rank(&first, member.size, id, member.rank, &config);
        if (started != success && started != in_progress) {
            library_.throw_failure(started, "ncclCommInitRankConfig", first, member_.device);
        }
        settle(first, "ncclCommInitRankConfig", patience);
        if (api.revoke != nullptr) make_blocking_twin(first, second, config, patience);
        handle_ = second != nullptr ? second : first;
    } catch (...) {
        // NCCL may give a handle although it has failed. Only once the first communicator is freed, the
        // second is no longer being made.
        if (first != nullptr) api.abort(first);
        if (second != nullptr) api.abort(second);
        throw;
    }
    // Nothing runs on the first one, and it takes as much memory as the second.
    if (handle_ != first) api.abort(first);
    const std::size_t free_after = cuda::free_memory();
    taken_ = free_before > free_after ? free_before - free_after : 0;
}

std::uint64_t Communicator::memory() {
    const std::lock_guard lock(mutex_);
    if (handle_ == nullptr || ending_) return 0;
    std::uint64_t counted = 0;
    const Api& api = library_.api();
    // A communicator that a call is using, or that does not block, must not be asked.
    const bool may_ask = inside_ == 0 && api.revoke != nullptr;
    const bool counts = may_ask && api.memory_stats != nullptr &&
                        api.memory_stats(handle_, memory_total, &counted) == success && counted > 0;
    return counts ? counted : taken_;
}

void Communicator::make_blocking_twin(Handle first, Handle& second, Config config,
                                      const Patience& patience) const {
    // This call itself does not block, because the first communicator does not.
    const Api& api = library_.api();
    config.blocking = 1;
    const Result split = api.split(first, 0, member_.rank, &second, &config);
    if (split != success && split != in_progress)
        library_.throw_failure(split, "ncclCommSplit", first, member_.device);
    settle(first, "ncclCommSplit", patience);
    if (second == nullptr) library_.throw_failure(internal_error, "ncclCommSplit", first, member_.device);
}

void Communicator::settle(Handle handle, const char* function, const Patience& patience) const {
    while (true) {
        Result state = success;
        library_.check(library_.api().get_async_error(handle, &state), "ncclCommGetAsyncError", handle);
        if (state == success) return;
        if (state != in_progress) library_.throw_failure(state, function, handle, member_.device);
        patience();
        std::this_thread::sleep_for(look_again);
    }
}

std::optional<std::string> Communicator::failure() {
    const std::lock_guard lock(mutex_);
    if (handle_ == nullptr || ending_) return std::nullopt;
    Result state = success;
    const Result asked = library_.api().get_async_error(handle_, &state);
    if (asked == success && (state == success || state == in_progress)) return std::nullopt;
    return std::string("NCCL has failed on rank ") + std::to_string(member_.rank) + ": " +
           library_.api().get_error_string(asked == success ? state : asked);
}

cuda::Signal Communicator::take_signal() {
    const std::lock_guard lock(mutex_);
    if (signals_ == nullptr) throw Error(ErrorKind::aborted, "NCCL's communicator was aborted");
    return signals_->take();
}

Handle Communicator::enter(const char* name) {
    const std::lock_guard lock(mutex_);
    if (ending_) throw Error(ErrorKind::aborted, std::string(name) + ": NCCL's communicator was aborted");
    ++inside_;
    return handle_;
}

void Communicator::leave() {
    const std::lock_guard lock(mutex_);
    --inside_;
    changed_.notify_all();
}

void Communicator::call(const char* name, const Function& function) {
    const Api& api = library_.api();
    const Handle handle = enter(name);
    Result result = function(api, handle);
    leave();
    // Between these looks nothing is inside NCCL, so `abort` need not wait.
    while (result == in_progress) {
        std::this_thread::sleep_for(look_at_call);
        static_cast<void>(enter(name));
        const Result asked = api.get_async_error(handle, &result);
        leave();
        if (asked != success) result = asked;
    }
    if (result == success) return;
    static_cast<void>(enter(name));  // after an abort, that is the reason
    leave();
    library_.throw_failure(result, name, handle, member_.device);
}

void Communicator::free_by(Result (*function)(Handle), Handle handle) noexcept {
    struct Freeing {
        std::mutex mutex;
        std::condition_variable changed;
        bool is_over = false;
    };
    // The thread may outlive this object.
    const auto freeing = std::make_shared<Freeing>();
    const auto job = [freeing, function, handle, context = context_, abort = library_.api().abort] {
        try {
            const cuda::Current current(*context);
            const cuda::RelaxedCapture relaxed;
            function(handle);
        } catch (const Error&) {
            abort(handle);  // the context is lost: free what can be freed
        }
        const std::lock_guard lock(freeing->mutex);
        freeing->is_over = true;
        freeing->changed.notify_all();
    };
    try {
        std::thread(job).detach();
    } catch (const std::system_error&) {
        return job();
    }
    const std::chrono::milliseconds longest = is_captured_ ? streams_freed_within : freed_within;
    std::unique_lock lock(freeing->mutex);
    freeing->changed.wait_for(lock, longest, [&] { return freeing->is_over; });
}

void Communicator::abort() noexcept {
    std::unique_lock lock(mutex_);
    if (ending_) {
        changed_.wait(lock, [&] { return handle_ == nullptr; });
        return;
    }
    ending_ = true;
    if (inside_ > 0 && library_.api().revoke != nullptr) library_.api().revoke(handle_, 0);
    changed_.wait_for(lock, calls_return, [&] { return inside_ == 0; });
    const Handle handle = handle_;
    lock.unlock();
    free_by(library_.api().abort, handle);
    lock.lock();
    handle_ = nullptr;
    signals_.reset();  // signals that are still looked at keep their memory
    changed_.notify_all();
}

void Communicator::close() noexcept {
    std::unique_lock lock(mutex_);
    if (ending_) {
        changed_.wait(lock, [&] { return handle_ == nullptr; });
        return;
    }
    ending_ = true;
    changed_.wait(lock, [&] { return inside_ == 0; });
    const Handle handle = handle_;
    lock.unlock();
    free_by(library_.api().destroy, handle);
    lock.lock();
    handle_ = nullptr;
    signals_.reset();  // signals that are still looked at keep their memory
    changed_.notify_all();
}

}  // namespace collectives::nccl
