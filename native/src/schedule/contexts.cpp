// What the links are told of an operation.
#include "schedule/schedule_task.hpp"

namespace collectives {

void ScheduleTask::set_contexts() {
    const Program& program = this->program();
    context_ = Context(request_->call, request_->fingerprint);
    context_.traffic = {.ranks = program.size,
                        .combined = static_cast<std::uint32_t>(program.combines),
                        .sends = program.says,
                        .receives = !program.sources.empty(),
                        .in_place = request_->is_in_place()};
    multicast_context_ = context_;
    multicast_context_.traffic.to_several = true;
}

}  // namespace collectives
