// Memory copies that choose their instructions by size.
//
// Invariant: source and destination do not overlap (or are equal); any alignment will do.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/export.hpp"

namespace collectives {

// Copies through the caches. From 2 KiB on by `rep movsb` where that moves whole lines, because plain stores
// into lines that another core has read are several times slower.
COLLECTIVES_API void copy_bytes(std::byte* dst, const std::byte* src, std::size_t n);

// Whether `rep movsb` would be slow from the one address to the other, whoever calls it: the kernel, too.
COLLECTIVES_API bool copies_slowly(std::uintptr_t dst, std::uintptr_t src);

// Copies around the caches, for destinations much larger than those. Complete (fenced) on return. The same as
// copy_bytes where the processor has no streaming stores.
COLLECTIVES_API void copy_streaming(std::byte* dst, const std::byte* src, std::size_t n);

// The same, for one part of several: what was written is complete after `finish_streaming`, which waits for
// it.
COLLECTIVES_API void copy_streaming_on(std::byte* dst, const std::byte* src, std::size_t n);
COLLECTIVES_API void finish_streaming();

// How results reach memory. `streaming` goes around the caches, for outputs much larger than those that
// nobody reads soon; it is complete (fenced) when whatever writes them returns. Only a hint: where the
// processor has no such stores, or `dst` is not aligned to its elements, it means `cached`.
enum class Stores : std::uint8_t { cached, streaming };

using CopyFn = void (*)(std::byte* dst, const std::byte* src, std::size_t n);

COLLECTIVES_API CopyFn copy_by(Stores stores);

// As `copy_bytes`, and writes a byte of each source line back as it was: this core owns the line then, and
// the core that wrote it gets it back at the price of a read. A line that both have read, and neither has
// written since, is several times as expensive to write. Nobody may be changing the source meanwhile; of its
// readers, all on one core may do this. The same as copy_bytes where reading a line does not bring the right
// to write to it.
COLLECTIVES_API void copy_and_own(std::byte* dst, std::byte* src, std::size_t n);

}  // namespace collectives
