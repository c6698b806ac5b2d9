// Whether memory of this process lies in huge pages: other processes look these up quickly.
#pragma once

#include <cstddef>

namespace collectives {

// Whether most of n bytes do, n > 0. False where the kernel does not say (before Linux 6.7). Some
// microseconds.
bool lies_in_huge_pages(const std::byte* data, std::size_t n);

}  // namespace collectives
