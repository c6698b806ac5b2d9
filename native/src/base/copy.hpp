// Memory copies that choose their instructions by size.
//
// Invariant: source and destination do not overlap (or are equal); any alignment will do.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/export.hpp"

namespace collectives {

// Copies through the caches. From 2 KiB on it uses `rep movsb` if the processor then moves whole cache lines,
// because plain stores into lines that another core has read are several times slower.
COLLECTIVES_API void copy_bytes(std::byte* dst, const std::byte* src, std::size_t n);

// Whether `rep movsb` would be slow between these addresses, also in a copy that the kernel makes.
COLLECTIVES_API bool copies_slowly(std::uintptr_t dst, std::uintptr_t src);

// Copies with streaming stores, which bypass the caches, for destinations much larger than the caches.
// Complete (fenced) on return. The same as copy_bytes if the processor has no streaming stores.
COLLECTIVES_API void copy_streaming(std::byte* dst, const std::byte* src, std::size_t n);

// As copy_streaming, for one of several parts: all parts are complete after `finish_streaming`.
COLLECTIVES_API void copy_streaming_on(std::byte* dst, const std::byte* src, std::size_t n);
COLLECTIVES_API void finish_streaming();

// How results are stored. `streaming` bypasses the caches, for outputs that are much larger than the caches
// and that nobody reads soon. The stores are complete (fenced) when the function that writes them returns.
// Only a hint: if the processor has no such stores, or `dst` is not aligned to its elements, it means
// `cached`.
enum class Stores : std::uint8_t { cached, streaming };

using CopyFn = void (*)(std::byte* dst, const std::byte* src, std::size_t n);

COLLECTIVES_API CopyFn copy_by(Stores stores);

// As `copy_bytes`, but also writes a byte of each source line back unchanged. This core then owns the line,
// and the next store of the core that wrote it costs only as much as a read. A store to a line that both
// cores have read is several times as expensive. No thread may change the source meanwhile, and only readers
// on one core may copy in this way. The same as copy_bytes if the processor does not grant ownership on reads
// (see hands_lines_over).
COLLECTIVES_API void copy_and_own(std::byte* dst, std::byte* src, std::size_t n);

}  // namespace collectives
