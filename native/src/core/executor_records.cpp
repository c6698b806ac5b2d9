// What the executor records of the operations under way, see Recorder.
#include "core/executor.hpp"
#include "schedule/program.hpp"

namespace collectives {

std::uint64_t Executor::record_queued(const Operation& operation, const Call& call, std::uint64_t queued) {
    if (queued == 0) queued = ticks::now();
    if (!call.is_message()) return recorder_.add(call, -1, false, queued);
    const Step& step = operation.program().steps.at(0);
    const int peer = step.peers.size() == 1 ? step.peers[0] : -1;
    return recorder_.add(call, peer, step.kind == StepKind::send, queued);
}

void Executor::record_failure(const std::string& why) {
    end_wait();
    const std::uint64_t now = ticks::now();
    for (const auto& one : under_way_) recorder_.fail(one->request().record, why, now);
}

void Executor::record_failure_of_oldest(const std::string& why) {
    end_wait();
    recorder_.fail(under_way_.front()->request().record, why, ticks::now());
}

void Executor::begin_wait() {
    waits_since_ = ticks::now();
    for (std::size_t i = 0; i < under_way_.size(); ++i) {
        recorder_.wait(under_way_[i]->request().record, waited_ - times_[i].waited_before, waits_since_);
    }
}

void Executor::end_wait() {
    if (waits_since_ == 0) return;
    just_looked_ = ticks::now();
    waited_ += just_looked_ - waits_since_;
    waits_since_ = 0;
    for (std::size_t i = 0; i < under_way_.size(); ++i) {
        recorder_.wait(under_way_[i]->request().record, waited_ - times_[i].waited_before, 0);
    }
}

void Executor::record_first() {
    new_moves_ = false;
    for (std::size_t i = 0; i < under_way_.size(); ++i) {
        Times& times = times_[i];
        if (!times.moved || times.recorded) continue;
        times.recorded = true;
        if (times.tried && just_looked_ == 0) just_looked_ = ticks::now();
        recorder_.first(under_way_[i]->request().record, times.tried ? just_looked_ : times.begun);
    }
}

}  // namespace collectives
