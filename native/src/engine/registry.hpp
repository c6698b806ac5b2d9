// The engines that this process knows, in the order in which a communicator asks them.
//
// Invariant: a name stands for one engine, and stays. All engines are registered before `main` or when the
// shared object that has them is loaded. The schedule engine comes last: it can run everything.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/export.hpp"
#include "engine/engine.hpp"

namespace collectives {

// An engine that stands earlier is asked earlier.
enum class EngineOrder : std::uint8_t {
    whole_collectives,   // libraries that do without our links
    messages_in_memory,  // ranks of one host, short operations
    sums_in_memory,      // and reductions
    schedules,           // any operation over links
};

using EngineFactory = std::function<std::unique_ptr<Engine>(Surroundings&)>;

// Error(invalid) if the name stands for another one already.
COLLECTIVES_API void register_engine(const char* name, EngineOrder order, EngineFactory make);
// Those of one communicator. The surroundings must stay longer than the engines.
COLLECTIVES_API Engines make_engines(Surroundings& surroundings);

// Registers an engine of the library itself before `main`.
struct COLLECTIVES_API RegisteredEngine {
    RegisteredEngine(const char* name, EngineOrder order, EngineFactory make) {
        register_engine(name, order, std::move(make));
    }
};

}  // namespace collectives
