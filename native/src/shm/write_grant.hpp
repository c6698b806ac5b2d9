// Permission for peers to write to this process's memory by a system call (process_vm_writev), which can be
// revoked.
//
// A peer that is stopped just before such a call makes it when it runs again. The kernel finds the memory by
// the id of any thread of the process. So peers get the id of a thread that has no other purpose: after that
// thread has ended, its id is invalid, and the call fails.
//
// Invariant: after `revoke`, no call begins that writes by an id which `id` has returned before. A call that
// has begun continues; only ending the peer's process could stop it. The kernel uses the id again only after
// all other ids, some ten thousand at least.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <thread>

namespace collectives {

class WriteGrant {
  public:
    WriteGrant() = default;
    WriteGrant(const WriteGrant&) = delete;
    WriteGrant& operator=(const WriteGrant&) = delete;
    ~WriteGrant() { revoke(); }

    // The id by which peers may write, from now until `revoke`; 0 if no thread can be started. Both are
    // called from one thread at a time.
    pid_t id();
    void revoke();

  private:
    std::atomic<pid_t> id_{0};
    std::atomic<bool> revoked_{false};
    std::thread thread_;
};

}  // namespace collectives
