// An engine runs whole operations of one rank: it makes the tasks that do so.
//
// Engines stand in a table, and the first that can run an operation does. Invariant: whether an engine can
// depends only on what all ranks of the operation know alike, so all ranks choose the same one.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "base/export.hpp"
#include "engine/task.hpp"
#include "link/commons.hpp"

namespace collectives {

// What engines know of their communicator. All but `commons` is the same on all its ranks.
struct Surroundings {
    Surroundings(std::size_t segment, bool oversubscribed)
        : segment(segment), oversubscribed(oversubscribed) {}

    std::size_t segment;  // bytes per slice, as the user asked; 0: the default
    bool oversubscribed;  // ranks outnumber cores, on some host
    // All ranks are linked by one transport that shares memory. Set before the first operation.
    std::atomic<bool> all_share_memory{false};
    Commons commons;  // with transports and among engines
};

class COLLECTIVES_API Engine {
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
