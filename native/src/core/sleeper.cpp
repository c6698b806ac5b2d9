#include "core/sleeper.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.hpp"

namespace collectives {

Sleeper::Sleeper() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!event_) throw_system("eventfd", errno);
}

void Sleeper::use(Doorbell& doorbell) {
    const std::lock_guard lock(ringing_);
    doorbell_ = &doorbell;
}

void Sleeper::arm(bool with_sockets) {
    at_descriptor_ = with_sockets || doorbell_ == nullptr;
    armed_.store(true, std::memory_order_seq_cst);
    if (doorbell_ != nullptr) doorbell_->arm(at_descriptor_);
}

void Sleeper::disarm() {
    armed_.store(false, std::memory_order_relaxed);
    if (doorbell_ != nullptr) doorbell_->disarm();
}

void Sleeper::sleep(std::span<const pollfd> sockets, std::chrono::nanoseconds timeout) {
    if (!at_descriptor_) return doorbell_->wait(timeout);
    polled_.clear();
    polled_.push_back({descriptor(), POLLIN, 0});
    polled_.insert(polled_.end(), sockets.begin(), sockets.end());
    timespec relative{};
    relative.tv_sec = timeout.count() / 1'000'000'000;
    relative.tv_nsec = timeout.count() % 1'000'000'000;
    if (::ppoll(polled_.data(), polled_.size(), &relative, nullptr) > 0 && polled_[0].revents != 0) {
        std::uint64_t count = 0;
        [[maybe_unused]] const auto n = ::read(descriptor(), &count, sizeof(count));
    }
}

void Sleeper::ring() {
    // With this fence, either the sleeper sees the caller's store, or the caller sees that the sleeper is
    // armed.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!armed_.load(std::memory_order_seq_cst)) return;
    const std::lock_guard lock(ringing_);
    if (doorbell_ != nullptr) doorbell_->ring();
    if (descriptor() < 0) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto n = ::write(descriptor(), &one, sizeof(one));
}

void Sleeper::close() {
    const std::lock_guard lock(ringing_);
    doorbell_ = nullptr;
    event_.reset();
}

}  // namespace collectives
