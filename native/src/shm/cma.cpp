// Cross-memory attach (CMA): messages that the receiver copies from the sender's process, alone or together
// with the sender. The receiver refuses memory that it cannot read; the sender then stages it.
#include <sched.h>

#include <array>

#include "base/wait.hpp"
#include "shm/link.hpp"
#include "shm/tuning.hpp"

namespace collectives {

bool ShmLink::read_remote(std::byte* data, std::size_t n) {
    if (!remote_.read(data, address_, n)) {
        refuse();
        return false;
    }
    address_ += n;
    remote_left_ -= n;
    return true;
}

bool ShmLink::read_jointly(std::byte* data) {
    JointCopy copy(in_.joint, line_in_);
    const std::size_t middle = JointCopy::middle(remote_left_);
    if (!joint_) {
        copy.open(reinterpret_cast<std::uintptr_t>(data), grant_ == nullptr ? 0 : grant_->id());
        joint_ = true;
        if (!remote_.read(data, address_, middle)) {
            end_joint();
            refuse();
            return false;
        }
    }
    if (copy.take_as_receiver()) {
        if (!remote_.read(data + middle, address_ + middle, remote_left_ - middle)) {
            joint_ = false;
            refuse();
            return false;
        }
    } else if (!copy.is_written()) {
        return false;
    }
    joint_ = false;
    remote_left_ = 0;
    return true;
}

void ShmLink::help() {
    if (!helps_) return;
    const Outstanding& line = direct_.front();
    JointCopy copy(out_.joint, line.line);
    if (!copy.take_as_sender()) return;
    const std::size_t n = line.end - released_;
    const std::size_t middle = JointCopy::middle(n);
    helps_ = lost() == nullptr && may_write_by(copy.grant()) &&
             written_to_.write(data_ + released_ + middle, copy.place() + middle, n - middle);
    copy.end(helps_);
    wake_peers(std::array{this});
}

bool ShmLink::may_write_by(pid_t grant) {
    if (grant == 0) return false;
    if (grant != writes_by_) {
        // If the peer is in another pid namespace, the id is that of another process here, or of none.
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
    JointCopy copy(in_.joint, line_in_);
    const auto is_over = [&] { return copy.take_as_receiver() || !copy.is_being_written(); };
    if (is_over()) return;
    // The sender has taken the back half, and may be stopped before the call that writes it. After `revoke`
    // such a call fails; a call that has begun continues.
    grant_->revoke();
    const Deadline deadline(tuning::write_ends_within);
    while (!is_over() && lost() == nullptr && !deadline.passed()) ::sched_yield();
}

void ShmLink::refuse() {
    refusing_ = true;
    remote_left_ = 0;
    in_.refused_from.store(read_, std::memory_order_relaxed);
    in_.refused.store(line_in_, std::memory_order_release);
    finish_line();
}

void ShmLink::restage_refused() {
    refused_ = true;
    restaged_ = written_;
    written_ = released_ = out_.refused_from.load(std::memory_order_relaxed);
    count_refused(restaged_ - written_);
    direct_.clear();
}

}  // namespace collectives
