// On-demand paging: memory that a device reads and writes without having it locked in place.
#pragma once

#include "verbs/abi.hpp"

namespace collectives::verbs {

// Whether reliable connections of this device write to such memory, and from it.
bool pages_on_demand(abi::Context* context);

}  // namespace collectives::verbs
