// The size of a page, which the fast paths of copies and the layout of shared memory depend on.
#pragma once

#include <cstddef>

namespace collectives {

// In bytes, as processors and kernels look pages up. The kernel's own pages may be larger.
inline constexpr std::size_t page_size = 4096;

}  // namespace collectives
