#include "nccl/communicator.hpp"

#include <chrono>
#include <thread>

#include "base/error.hpp"

namespace collectives::nccl {

using namespace std::chrono_literals;

namespace {

// How often the state is asked for while ranks meet, which takes about half a second.
constexpr auto look_again = 1ms;
// A call that `abort` meets returns within this time once NCCL has been told to give up.
constexpr auto calls_return = 1s;

}  // namespace

Communicator::Communicator(const Library& library, const UniqueId& id, const Member& member, int max_ctas,
                           const Patience& patience)
    : library_(library),
      member_(member),
      context_(cuda::PrimaryContext::of(member.device)),
      signals_(std::make_shared<cuda::Signals>(context_)) {
    const Api& api = library_.api();
    const cuda::Current current(*context_);
    Config config;
    config.blocking = 0;
    config.split_share = 0;  // so that the first communicator can be freed without the second
    if (max_ctas > 0) config.max_ctas = max_ctas;
    Handle first = nullptr;
    Handle second = nullptr;
    try {
        const Result started = api.init_rank(&first, member.size, id, member.rank, &config);
        if (started != success && started != in_progress) {
            library_.throw_failure(started, "ncclCommInitRankConfig", first);
        }
        settle(first, "ncclCommInitRankConfig", patience);
        // Each call on a communicator that does not block costs several times as much as on one that does.
        // The first makes the second, still without blocking.
        config.blocking = 1;
        const Result split = api.split(first, 0, member.rank, &second, &config);
        if (split != success && split != in_progress) library_.throw_failure(split, "ncclCommSplit", first);
        settle(first, "ncclCommSplit", patience);
        if (second == nullptr) library_.throw_failure(internal_error, "ncclCommSplit", first);
    } catch (...) {
        // NCCL may give a handle although it has failed.
        if (second != nullptr) api.abort(second);
        if (first != nullptr) api.abort(first);
        throw;
    }
    // Nothing runs on the first one, and it takes as much memory as the second.
    api.abort(first);
    handle_ = second;
}

void Communicator::settle(Handle handle, const char* function, const Patience& patience) const {
    while (true) {
        Result state = success;
        library_.check(library_.api().get_async_error(handle, &state), "ncclCommGetAsyncError", handle);
        if (state == success) return;
        if (state != in_progress) library_.throw_failure(state, function, handle);
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

void Communicator::call(const char* name, const Function& function) {
    Handle handle = nullptr;
    {
        const std::lock_guard lock(mutex_);
        if (ending_) throw Error(ErrorKind::aborted, std::string(name) + ": NCCL's communicator was aborted");
        ++inside_;
        handle = handle_;
    }
    const Result result = function(library_.api(), handle);
    const std::lock_guard lock(mutex_);
    --inside_;
    changed_.notify_all();
    if (ending_) throw Error(ErrorKind::aborted, std::string(name) + ": NCCL's communicator was aborted");
    library_.check(result, name, handle);
}

void Communicator::let_calls_return(std::unique_lock<std::mutex>& lock) {
    if (inside_ == 0) return;
    if (library_.api().revoke != nullptr) library_.api().revoke(handle_, 0);
    changed_.wait_for(lock, calls_return, [&] { return inside_ == 0; });
}

void Communicator::abort() noexcept {
    std::unique_lock lock(mutex_);
    if (ending_) {
        changed_.wait(lock, [&] { return handle_ == nullptr; });
        return;
    }
    ending_ = true;
    let_calls_return(lock);
    const Handle handle = handle_;
    lock.unlock();
    try {
        const cuda::Current current(*context_);
        library_.api().abort(handle);
    } catch (const Error&) {
        library_.api().abort(handle);  // the context is lost: free what can be freed
    }
    lock.lock();
    handle_ = nullptr;
    changed_.notify_all();
}

void Communicator::close() noexcept {
    std::unique_lock lock(mutex_);
    if (ending_) {
        changed_.wait(lock, [&] { return handle_ == nullptr; });
        return;
    }
    ending_ = true;
    const Handle handle = handle_;
    lock.unlock();
    try {
        const cuda::Current current(*context_);
        library_.api().destroy(handle);
    } catch (const Error&) {
        library_.api().abort(handle);
    }
    lock.lock();
    handle_ = nullptr;
    changed_.notify_all();
}

}  // namespace collectives::nccl
