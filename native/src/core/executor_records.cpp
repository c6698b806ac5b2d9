// The part of the executor that fills the records of operations in progress, see Recorder.
#include "core/executor.hpp"
#include "schedule/program.hpp"

namespace collectives {

Recorder::Way Executor::way_of(const Operation& operation) {
    if (!operation.call().is_message()) return {};
    const Step& step = operation.program().steps.at(0);
    return {step.peers.size() == 1 ? step.peers[0] : -1, step.kind == StepKind::send};
}

std::uint64_t Executor::record_queued(const Operation& operation, const Call& call) {
    return recorder_.add(call, way_of(operation), ticks::now());
}

void Executor::record_begun(Request& request, const char* engine, std::uint64_t now) {
    if (request.record != 0) {
        return recorder_.start(request.record, request.call, engine, now, request.fingerprint);
    }
    request.record =
        recorder_.add(request.call, way_of(*request.operation), request.queued != 0 ? request.queued : now,
                      engine, now, request.fingerprint);
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
