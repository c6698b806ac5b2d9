"""Addresses that are equal for arrays in the same memory, even if the memory is mapped twice in this process.

A process can map a file, or shared memory, at several addresses. Invariant: for memory that cannot be mapped twice, no
system call is made.
"""

from __future__ import annotations

import mmap

import numpy as np

from collectives.arrays.exporters import torch
from collectives.arrays.exporters.reached import Array


def address(x: Array) -> int:
    """Returns a number for the memory of `x`, equal for arrays in the same memory even if the memory is mapped twice.

    For memory of a mapped file, the number is made of the file and the position of `x` in the file. Otherwise the
    number is the address.
    """
    start = int(x.__array_interface__["data"][0])
    if x.base is None or not x.nbytes or not _is_mapped(x):
        return start
    return _place(start)


def _is_mapped(x: Array) -> bool:
    """Whether `x` is in memory of an `mmap.mmap` (numpy.memmap, SharedMemory, ...) or of a tensor in shared memory."""
    base: object = x
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return isinstance(base, mmap.mmap) or torch.is_shared(base)


def _place(start: int) -> int:
    """Returns a number made of the file that is mapped at the address `start`, and of the position in this file.

    The number is larger than any address. If no file is mapped there, returns `start`.
    """
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
