"""The address of an array, such that two mappings of the same memory have the same address.

A file, or shared memory, can be mapped at several addresses of a process. Invariant: for memory that cannot be mapped
twice, no system call is made.
"""

from __future__ import annotations

import mmap

import numpy as np

from collectives.arrays.exporters import torch
from collectives.arrays.exporters.reached import Array


def address(x: Array) -> int:
    """The address of the first byte of `x`; for a mapped file, a number for the file and the position in it."""
    start = int(x.__array_interface__["data"][0])
    if x.base is None or not x.nbytes or not _is_mapped(x):
        return start
    return _place(start)


def _is_mapped(x: Array) -> bool:
    """Whether the memory of `x` belongs to an `mmap.mmap` (numpy.memmap, SharedMemory, ...) or a shared tensor."""
    base: object = x
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return isinstance(base, mmap.mmap) or torch.is_shared(base)


def _place(start: int) -> int:
    """A number above all addresses for the byte at `start`, by its file and position; `start` if it is in no file."""
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            span, _, offset, device, inode, *_ = line.split(None, 5)
            first, last = (int(end, 16) for end in span.split(b"-"))
            if not first <= start < last:
                continue
            if inode == b"0":
                break
            major, minor = (int(part, 16) for part in device.split(b":"))
            file = (int(inode) << 64) | (major << 32) | minor
            return ((file + 1) << 128) + int(offset, 16) + start - first
    return start
