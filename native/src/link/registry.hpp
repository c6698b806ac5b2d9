// The transports that this process knows, by name.
//
// Invariant: a name stands for one transport, and stays. Calls may come from any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/export.hpp"
#include "link/transport.hpp"

namespace collectives {

struct TransportFactory {
    std::function<std::unique_ptr<Transport>(const Setup&)> make;
    // Why this process has no room for a group of so many ranks, if so.
    std::function<std::optional<std::string>(int ranks, std::size_t segment)> why_no_room;
};

// Error(invalid) if the name stands for another one already.
COLLECTIVES_API void register_transport(const std::string& name, TransportFactory factory);
// In alphabetical order.
COLLECTIVES_API std::vector<std::string> registered_transports();
// Both: Error(transport_unavailable) for an unknown name, with those that are known.
COLLECTIVES_API std::unique_ptr<Transport> make_transport(const std::string& name, const Setup& setup);
COLLECTIVES_API std::optional<std::string> why_no_room(const std::string& name, int ranks,
                                                       std::size_t segment);

// Registers a transport when the shared object that defines it is loaded. An error cannot be thrown there: it
// is kept, see below.
struct COLLECTIVES_API RegisteredTransport {
    RegisteredTransport(const char* name, TransportFactory factory) noexcept;
};

// Why transports could not be registered, since the last call.
std::vector<std::string> take_refused_transports();

}  // namespace collectives
