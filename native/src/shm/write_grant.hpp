// Permission for peers to write to this process's memory by a system call (process_vm_writev), which can be
// revoked.
//
// A peer that is stopped just before the call makes it when it is woken. The kernel finds the memory by the
// id of any thread of the process. So peers get the id of a thread that does nothing else: once that thread
// has ended, there is no such id, and the call fails.
//
// Invariant: after `revoke` no call begins that writes by an id that `id` has given before. One that has
// begun goes on to its end, which nobody can stop but by ending the process that makes it. The kernel gives
// the id to another thread only after it has given out all others, some ten thousands at least.
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
