#include "engine/generalized.hpp"

#include <set>
#include <utility>

namespace collectives {

namespace {

// Names are kept for the life of the process, because records use them longer than engines exist.
const char* interned(const std::string& name) {
    static std::mutex mutex;
    static std::set<std::string> names;
    const std::lock_guard lock(mutex);
    return names.insert(name).first->c_str();
}

}  // namespace

GeneralizedRequest::GeneralizedRequest(const std::string& engine, std::function<void()> news)
    : engine_(interned(engine)), news_(std::move(news)) {}

GeneralizedRequest::State GeneralizedRequest::wait(std::chrono::nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [&] { return state_ != State::waiting; });
    return state_;
}

void GeneralizedRequest::begin() {
    const std::lock_guard lock(mutex_);
    if (state_ == State::waiting) state_ = State::begun;
    changed_.notify_all();
}

bool GeneralizedRequest::is_over() const {
    const std::lock_guard lock(mutex_);
    return state_ == State::over;
}

std::optional<Error> GeneralizedRequest::error() const {
    const std::lock_guard lock(mutex_);
    return error_;
}

void GeneralizedRequest::end(std::optional<Error> error) {
    const std::lock_guard lock(mutex_);
    if (state_ == State::over) return;
    state_ = State::over;
    error_ = std::move(error);
    changed_.notify_all();
    // Called under the mutex, because the receiver of the news may be destroyed after `abandon` has returned.
    if (news_) news_();
}

void GeneralizedRequest::abandon() {
    const std::lock_guard lock(mutex_);
    state_ = State::over;
    news_ = nullptr;
    changed_.notify_all();
}

}  // namespace collectives
