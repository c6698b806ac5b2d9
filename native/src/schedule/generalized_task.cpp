#include "schedule/generalized_task.hpp"

#include "engine/registry.hpp"

namespace collectives {

namespace {

// After the deadline, ranks have this time to tell each other which engine has not completed.
constexpr std::chrono::seconds time_for_the_cause{10};
// If all other ranks have completed, this rank completes within this time, too.
constexpr std::chrono::seconds time_to_complete{5};

const RegisteredEngine generalized_engine("generalized", EngineOrder::whole_collectives,
                                          [](Surroundings& surroundings) {
                                              return std::make_unique<GeneralizedEngine>(surroundings);
                                          });

}  // namespace

void GeneralizedTask::begin(Request& request, const Position& position) {
    request_ = &request;
    lost_since_.reset();
    has_begun_ = is_over_ = false;
    agreement_.begin(request, position);
}

bool GeneralizedTask::progress() {
    bool moved = false;
    if (!agreement_.complete()) {
        moved = agreement_.progress();
        if (!agreement_.complete()) return moved;
    }
    if (!has_begun_) {
        has_begun_ = moved = true;
        request_->generalized->begin();
    }
    if (is_over_) return moved;
    if (!request_->generalized->is_over()) {
        look_for_losses();
        return moved;
    }
    if (const std::optional<Error> error = request_->generalized->error()) throw *error;
    return is_over_ = true;
}

void GeneralizedTask::look_for_losses() {
    for (const int peer : request_->operation->program().peers) {
        Link* const link = request_->links[static_cast<std::size_t>(peer)];
        const char* const why = link == nullptr ? nullptr : link->lost();
        if (why == nullptr) continue;
        // The peer may have completed the operation and closed the communicator, and this rank may be about
        // to.
        const auto now = Clock::now();
        if (!lost_since_) lost_since_ = now;
        if (now - *lost_since_ >= time_to_complete) link->throw_lost(request_->call, why);
    }
}

void GeneralizedTask::awaited(std::vector<Awaited>& result) {
    if (!agreement_.complete()) agreement_.awaited(result);
}

void GeneralizedTask::abandon() {
    if (!agreement_.complete()) agreement_.abandon();
    request_->generalized->abandon();
}

bool GeneralizedTask::reclaim() {
    // An engine that has begun cannot be stopped here: it has to end by the deadline itself.
    return agreement_.complete() || agreement_.reclaim();
}

std::chrono::nanoseconds GeneralizedTask::grace() const {
    return has_begun_ ? time_for_the_cause : std::chrono::seconds(0);
}

}  // namespace collectives
