// Memory copies that choose their instructions by size.
//
// Invariant: source and destination do not overlap (or are equal); any alignment will do.
#pragma once

#include <cstddef>

namespace collectives {

// Copies through the caches. From 2 KiB on by `rep movsb` where that moves whole lines, because plain stores
// into lines that another core has read are several times slower.
void copy_bytes(std::byte* dst, const std::byte* src, std::size_t n);

// Copies around the caches, for destinations much larger than those. Complete (fenced) on return. The same as
// copy_bytes where the processor has no streaming stores.
void copy_streaming(std::byte* dst, const std::byte* src, std::size_t n);

}  // namespace collectives
