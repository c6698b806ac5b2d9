// The engines of a rank, in the order in which they are asked.
#pragma once

#include "engine/engine.hpp"
#include "schedule/schedule_task.hpp"

namespace collectives {

// The last one can run everything.
Engines make_engines(const ScheduleSettings& settings, Colocated& colocated);

}  // namespace collectives
