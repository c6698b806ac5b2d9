// Makes pages of a shared file private to this process, without changing their addresses.
//
// A peer that is stopped in the middle of a copy into shared memory continues it when it runs again. So after
// a failed operation the owner of the array replaces its pages by private copies; peers keep the old pages,
// which nobody reads any more.
//
// Invariant: the contents stay, and no store of another thread of this process is lost. The new mapping of
// the file is private, so the kernel copies a page at its first store, and no store can go to the old page
// after that.
#pragma once

#include <cstddef>
#include <cstdint>

namespace collectives {

// Make the n bytes at `begin`, whole pages that are mapped from byte `offset` of `fd` on, private to this
// process and return their file pages to the kernel. This needs a few more megabytes of memory while it runs.
// False if the kernel refuses such a mapping (RLIMIT_DATA, strict overcommit): then nothing has changed.
bool make_private(std::byte* begin, std::size_t n, int fd, std::uint64_t offset);

}  // namespace collectives
