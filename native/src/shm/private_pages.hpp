// Pages of a shared file that become private to this process, at the addresses at which it has mapped them.
//
// A peer that was stopped in the middle of a copy into shared memory goes on with it when it is woken. So
// after a failed operation the owner of the array moves it: its pages are copied, and peers keep the old
// ones, which nobody reads any more.
//
// Invariant: the contents stay, and no store of another thread of this process is lost: the kernel copies
// each page when it is first written to (a private mapping of the file), so there is no moment at which a
// store could still go to the old page after it was copied.
#pragma once

#include <cstddef>
#include <cstdint>

namespace collectives {

// Make the n bytes at `begin`, whole pages that are mapped from byte `offset` of `fd` on, private to this
// process and give their file pages back to the kernel. It takes memory for a few megabytes more than before
// at a time. False where the kernel refuses such a mapping (RLIMIT_DATA, strict overcommit): then nothing has
// changed.
bool make_private(std::byte* begin, std::size_t n, int fd, std::uint64_t offset);

}  // namespace collectives
