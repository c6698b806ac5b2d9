// Sizes rounded up to whole units.
#pragma once

#include <cstddef>

namespace collectives {

constexpr std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

}  // namespace collectives
