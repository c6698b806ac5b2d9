#include "core/overlay.hpp"

#include <cstdint>
#include <set>

namespace collectives {

std::vector<int> control_neighbours(int rank, int size) {
    std::set<int> found;
    for (std::int64_t distance = 1; distance < size; distance *= 4) {
        found.insert(static_cast<int>((rank + distance) % size));
        found.insert(static_cast<int>((rank - distance + size) % size));
    }
    found.erase(rank);
    return {found.begin(), found.end()};
}

}  // namespace collectives
