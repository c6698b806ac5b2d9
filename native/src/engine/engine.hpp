// An engine runs whole operations of one rank: it makes the tasks that do so.
//
// Engines stand in a table, and the first that can run an operation does. Invariant: whether an engine can
// depends only on what all ranks of the operation know alike, so all ranks choose the same one.
#pragma once

#include <memory>
#include <vector>

#include "engine/task.hpp"

namespace collectives {

class Engine {
  public:
    Engine() = default;
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;
    virtual ~Engine() = default;

    virtual const char* name() const = 0;
    // Why it cannot run that request, whose memory need not be there; null where it can.
    virtual const char* refuses(const Request& request) const = 0;
    virtual std::unique_ptr<Task> make_task() = 0;
};

using Engines = std::vector<std::unique_ptr<Engine>>;

// What an engine says to an operation, as `explain` shows it.
struct EngineChoice {
    const char* engine;
    const char* refuses;  // null: it can
};

}  // namespace collectives
