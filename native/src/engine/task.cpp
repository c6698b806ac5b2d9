#include "engine/task.hpp"

#include <algorithm>

namespace collectives {

bool Task::waits_for(PeerTest test) {
    awaited_.clear();
    awaited(awaited_);
    return std::any_of(awaited_.begin(), awaited_.end(), [&](const Awaited& one) { return test(one.peer); });
}

}  // namespace collectives
