#include "core/job.hpp"

#include <utility>

namespace collectives {

bool Job::enter() {
    const std::lock_guard lock(mutex_);
    if (over_) throw Error(ErrorKind::aborted, "all communicators of this job are closed");
    ++communicators_;
    return !std::exchange(begun_, true);
}

void Job::exit() {
    const std::lock_guard lock(mutex_);
    if (--communicators_ > 0) return;
    over_ = true;
    control_.reset();
}

Control& Job::control() {
    const std::lock_guard lock(mutex_);
    if (!control_) control_ = std::make_unique<Control>(heartbeats_);
    return *control_;
}

void Job::expect(const GroupId& group) {
    const std::lock_guard lock(mutex_);
    if (control_) control_->expect(group);  // without the thread, no peer can connect
}

void Job::forget(const GroupId& group) {
    const std::lock_guard lock(mutex_);
    if (control_) control_->forget(group);
}

}  // namespace collectives
