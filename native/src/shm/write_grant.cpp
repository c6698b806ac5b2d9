#include "shm/write_grant.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace collectives {

pid_t WriteGrant::id() {
    if (thread_.joinable()) return id_.load(std::memory_order_relaxed);
    revoked_.store(false, std::memory_order_relaxed);
    // The thread blocks all signals, so that the program's other threads receive them.
    sigset_t all;
    sigset_t before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        thread_ = std::thread([this] {
            id_.store(static_cast<pid_t>(::syscall(SYS_gettid)), std::memory_order_release);
            id_.notify_one();
            revoked_.wait(false, std::memory_order_acquire);
        });
    } catch (const std::system_error&) {
        ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return 0;
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    id_.wait(0, std::memory_order_acquire);
    return id_.load(std::memory_order_acquire);
}

void WriteGrant::revoke() {
    if (!thread_.joinable()) return;
    revoked_.store(true, std::memory_order_release);
    revoked_.notify_one();
    thread_.join();
    // The thread's id may exist for a moment after `join` has returned.
    const pid_t id = id_.exchange(0, std::memory_order_relaxed);
    while (::syscall(SYS_tgkill, ::getpid(), id, 0) == 0) ::sched_yield();
}

}  // namespace collectives
