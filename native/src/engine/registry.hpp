// The engines that this process knows, in the order in which a communicator asks them.
//
// Invariant: a name stands for one engine, which is never removed. Engines are registered before `main`, or
// when the shared object that defines them is loaded. The schedule engine, which can run everything, is last.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/export.hpp"
#include "engine/engine.hpp"

namespace collectives {

// Engines are asked in this order.
enum class EngineOrder : std::uint8_t {
    whole_collectives,   // of other libraries, which do not use links
    messages_in_memory,  // short operations among ranks that share memory
    sums_in_memory,      // reductions among ranks that share memory
    schedules,           // all operations, over links
};

using EngineFactory = std::function<std::unique_ptr<Engine>(Surroundings&)>;

// Throws Error(invalid) if the name stands for another engine already.
COLLECTIVES_API void register_engine(const char* name, EngineOrder order, EngineFactory make);
// Makes the engines of one communicator. `surroundings` must outlive them.
COLLECTIVES_API Engines make_engines(Surroundings& surroundings);

// Registers an engine of the library itself before `main`.
struct COLLECTIVES_API RegisteredEngine {
    RegisteredEngine(const char* name, EngineOrder order, EngineFactory make) {
        register_engine(name, order, std::move(make));
    }
};

}  // namespace collectives
