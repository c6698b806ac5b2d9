// Warnings for the user, until a thread of the caller can pass them on.
//
// Invariant: threads of the engine only add. The binding takes them while a caller waits, and logs them.
#pragma once

#include <string>
#include <vector>

namespace collectives::warnings {

// From any thread. Only the first ones are kept if nobody takes them.
void add(std::string text);
// Cheap if there are none.
std::vector<std::string> take();

}  // namespace collectives::warnings
