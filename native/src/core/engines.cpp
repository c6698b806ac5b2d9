#include "core/engines.hpp"

#include "shm/board_task.hpp"
#include "shm/pool_task.hpp"

namespace collectives {

Engines make_engines(const ScheduleSettings& settings, Colocated& colocated) {
    auto schedule = std::make_unique<ScheduleEngine>(settings, colocated);
    Engines engines;
    engines.push_back(std::make_unique<BoardEngine>(colocated));
    engines.push_back(std::make_unique<PoolEngine>(colocated, *schedule));
    engines.push_back(std::move(schedule));
    return engines;
}

}  // namespace collectives
