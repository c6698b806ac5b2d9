#include "core/sleeper.hpp"

#include <sys/eventfd.h>

#include <cerrno>

#include "base/error.hpp"
#include "base/wait.hpp"

namespace collectives {

Sleeper::Sleeper() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!event_) throw_system("eventfd", errno);
}

void Sleeper::arm(bool with_sockets) {
    on_eventfd_ = with_sockets || !arena_;
    armed_.store(true, std::memory_order_seq_cst);
    if (!arena_) return;
    Header& header = arena_->header();
    seen_ = header.doorbell.load(std::memory_order_acquire);
    const Sleep mode = on_eventfd_ ? Sleep::on_eventfd : Sleep::on_doorbell;
    // Comes before the last look in the one order of all sequentially consistent accesses.
    header.sleeping.store(static_cast<std::uint32_t>(mode), std::memory_order_seq_cst);
}

void Sleeper::disarm() {
    armed_.store(false, std::memory_order_relaxed);
    if (arena_) {
        const auto awake = static_cast<std::uint32_t>(Sleep::awake);
        arena_->header().sleeping.store(awake, std::memory_order_relaxed);
    }
}

void Sleeper::sleep(std::span<const pollfd> sockets, std::chrono::nanoseconds timeout) {
    if (!on_eventfd_) {
        futex_wait(arena_->header().doorbell, seen_, timeout);
        return;
    }
    polled_.clear();
    polled_.push_back({event(), POLLIN, 0});
    polled_.insert(polled_.end(), sockets.begin(), sockets.end());
    timespec relative{};
    relative.tv_sec = timeout.count() / 1'000'000'000;
    relative.tv_nsec = timeout.count() % 1'000'000'000;
    if (::ppoll(polled_.data(), polled_.size(), &relative, nullptr) > 0 && polled_[0].revents != 0) {
        std::uint64_t count = 0;
        [[maybe_unused]] const auto n = ::read(event(), &count, sizeof(count));
    }
}

void Sleeper::ring() {
    // As for peers: one of the two sees the other's store.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!armed_.load(std::memory_order_seq_cst)) return;
    if (arena_) {
        arena_->header().doorbell.fetch_add(1, std::memory_order_release);
        futex_wake(arena_->header().doorbell);
    }
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto n = ::write(event(), &one, sizeof(one));
}

}  // namespace collectives
