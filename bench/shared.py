"""Memory that all ranks of a communicator on one machine map, to measure the machine without the library.

Invariant: ranks read and write this memory without the library. The memory has no name in a file system, and the kernel
frees it when the last process that maps it ends.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from collectives import Communicator
from collectives.bench.values import Array


def shared(comm: Communicator, nbytes: int) -> mmap.mmap | None:
    """Allocate `nbytes` bytes of memory that all ranks map, filled with zeros. All ranks must call this.

    Return None on all ranks if one of them cannot map the memory. The memory is unmapped when the returned object is no
    longer referenced.
    """
    with contextlib.ExitStack() as stack:
        descriptor = -1
        place = np.full(2, -1, np.int64)  # numbers of the process and of the file descriptor
        if comm.rank == 0:
            with contextlib.suppress(OSError):
                descriptor = stack.enter_context(_closing(os.memfd_create("bench", os.MFD_CLOEXEC)))
                os.ftruncate(descriptor, nbytes)
                place[:] = os.getpid(), descriptor
        comm.broadcast(place)
        found: mmap.mmap | None = None
        # Another machine may have a process and a descriptor with these numbers; the token identifies the memory.
        token = np.frombuffer(os.urandom(8), np.int64).copy()
        comm.broadcast(token)
        with contextlib.suppress(OSError, ValueError):
            if comm.rank:
                path = f"/proc/{place[0]}/fd/{place[1]}"
                if os.readlink(path).startswith("/memfd:bench"):
                    descriptor = stack.enter_context(_closing(os.open(path, os.O_RDWR | os.O_CLOEXEC)))
            if descriptor >= 0 and os.fstat(descriptor).st_size == nbytes:
                found = mmap.mmap(descriptor, nbytes)
        if comm.rank == 0 and found is not None:
            found[:8] = token.tobytes()
        comm.barrier()
        mine = found is not None and found[:8] == token.tobytes()
        everyone = bool(comm.allreduce(np.array(mine, np.int64), "min"))
        if found is not None and not everyone:
            found.close()
        if not everyone:
            return None
        comm.barrier()
        if comm.rank == 0 and found is not None:
            found[:8] = bytes(8)
        comm.barrier()
        return found


def array(memory: mmap.mmap, dtype: Any, offset: int, elements: int) -> Array:
    """Return a NumPy array of `elements` elements that begins at byte `offset` of `memory`.

    The memory stays mapped as long as the array exists.
    """
    return np.frombuffer(memory, dtype, elements, offset)


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)
