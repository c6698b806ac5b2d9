// An engine runs whole operations of one rank, by tasks that it makes.
//
// A communicator has a list of engines; the first engine that can run an operation runs it. Invariant:
// whether an engine can depends only on data that all ranks of the operation have, so all ranks choose the
// same engine.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "base/export.hpp"
#include "engine/task.hpp"
#include "link/commons.hpp"

namespace collectives {

// What engines know of their communicator. All members but `commons` are the same on all its ranks.
struct Surroundings {
    Surroundings(std::size_t segment, bool oversubscribed)
        : segment(segment), oversubscribed(oversubscribed) {}

    std::size_t segment;  // bytes per slice, as the user asked; 0: the default
    bool oversubscribed;  // ranks outnumber cores on some host
    // Whether one transport that shares memory links all ranks. Set before the first operation.
    std::atomic<bool> all_share_memory{false};
    Commons commons;  // objects that engines and transports share
};

class COLLECTIVES_API Engine {
  public:
    Engine() = default;
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;
    virtual ~Engine() = default;

    virtual const char* name() const = 0;
    // Why the engine cannot run that request, null if it can. The request's memory need not be set.
    virtual const char* refuses(const Request& request) const = 0;
    virtual std::unique_ptr<Task> make_task() = 0;
};

using Engines = std::vector<std::unique_ptr<Engine>>;

// Whether an engine runs an operation, as `explain` shows it.
struct EngineChoice {
    const char* engine;
    const char* refuses;  // the reason that it cannot; null if it can
};

}  // namespace collectives
