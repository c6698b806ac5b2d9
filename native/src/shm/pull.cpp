// Messages that lie in the sender's process: read there by the receiver, by both of them together, or refused
// and staged after all.
#include <sched.h>

#include <array>

#include "base/wait.hpp"
#include "shm/link.hpp"

namespace collectives {

namespace {

// How long the peer may take to end a system call that it is in, at most, in seconds.
constexpr double writes_for = 1.0;

}  // namespace

bool ShmLink::pull(std::byte* data, std::size_t n) {
    if (!remote_.read(data, address_, n)) {
        refuse();
        return false;
    }
    address_ += n;
    remote_left_ -= n;
    return true;
}

bool ShmLink::pull_jointly(std::byte* data) {
    JointCopy copy(in_.joint, line_in_, remote_left_);
    if (!joint_) copy.open(reinterpret_cast<std::uintptr_t>(data), grant_ == nullptr ? 0 : grant_->id());
    joint_ = true;
    for (auto part = copy.take_front(); part.n > 0; part = copy.take_front()) {
        if (remote_.read(data + part.from, address_ + part.from, part.n)) continue;
        end_joint();
        refuse();
        return false;
    }
    if (!copy.is_complete()) return false;
    joint_ = false;
    remote_left_ = 0;
    return true;
}

void ShmLink::help() {
    if (!helps_) return;
    const Outstanding& line = direct_.front();
    JointCopy copy(out_.joint, line.line, line.end - released_);
    bool wrote = false;
    for (auto part = copy.take_back(); part.n > 0; part = copy.take_back()) {
        helps_ = lost() == nullptr && may_write_by(copy.grant()) &&
                 written_to_.write(data_ + released_ + part.from, copy.place() + part.from, part.n);
        helps_ ? copy.tell_written(part) : copy.give_back(part);
        wrote = true;
        if (!helps_) break;
    }
    if (wrote) wake_peers(std::array{this});
}

bool ShmLink::may_write_by(pid_t grant) {
    if (grant == 0) return false;
    if (grant != writes_by_) {
        // Where the peer counts processes otherwise than we do, the id is another one's, or nobody's.
        Remote process(grant);
        if (!is_peer(process)) return false;
        written_to_ = std::move(process);
        writes_by_ = grant;
    }
    return true;
}

void ShmLink::end_joint() {
    if (!joint_) return;
    joint_ = false;
    JointCopy copy(in_.joint, line_in_, remote_left_);
    const std::uint64_t theirs = copy.close();
    if (copy.is_written(theirs)) return;
    // It has taken some, and may be stopped before the call that writes them: that one is to fail. One that
    // it is in goes on.
    grant_->revoke();
    const Deadline deadline(writes_for);
    while (!copy.is_written(theirs) && lost() == nullptr && !deadline.passed()) ::sched_yield();
}

void ShmLink::refuse() {
    refusing_ = true;
    remote_left_ = 0;
    in_.refused_from.store(taken_, std::memory_order_relaxed);
    in_.refused.store(line_in_, std::memory_order_release);
    finish_line();
}

void ShmLink::stage_refused() {
    refused_ = true;
    restaged_ = written_;
    written_ = released_ = out_.refused_from.load(std::memory_order_relaxed);
    count_refused(restaged_ - written_);
    direct_.clear();
}

}  // namespace collectives
