"""Checks of arrays in CUDA memory, before a call on them is prepared.

Invariant: nothing here communicates, or changes anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collectives.arrays.cuda import CudaArray
from collectives.calls.moves import Calls
from collectives.calls.streamed import StreamCalls, check_not_first
from collectives.native import _engine


def check_formed(streams: StreamCalls, calls: Calls) -> None:
    """ValueError in a `group()` block if the call would make NCCL's communicator."""
    if streams.device is None and not streams.without:
        check_not_first(calls)


def check_devices(arrays: Sequence[CudaArray], rank: int) -> None:
    """ValueError if the arrays are on different devices."""
    for i, array in enumerate(arrays):
        if array.device != arrays[0].device:
            raise ValueError(
                f"rank {rank}: array 0 is on device {arrays[0].device} and array {i} on device "
                f"{array.device}: give all on one device"
            )


def results_of(arrays: Sequence[Any], out: Any) -> list[Any]:
    """The array for the result of each of `arrays`, None for a new one. ValueError if `out` has another number."""
    given = [None] * len(arrays) if out is None else list(out)
    if len(given) != len(arrays):
        raise ValueError(f"out has {len(given)} arrays, but there are {len(arrays)} to reduce")
    return given


def with_rows(array: CudaArray, name: str) -> CudaArray:
    """The array; ValueError if it has no first axis."""
    if not array.shape:
        raise ValueError(f"{name} divides the first axis of x, but x has shape ()")
    return array


def check_apart(pairs: Sequence[tuple[CudaArray, CudaArray]]) -> None:
    """ValueError if a result shares memory with another array of the list."""
    spans = []
    for i, (x, y) in enumerate(pairs):
        spans.append((y.address, y.address + y.nbytes, i, True))
        if x.address != y.address:
            spans.append((x.address, x.address + x.nbytes, i, False))
    spans = sorted(span for span in spans if span[0] < span[1])
    end, last, writes = 0, -1, False  # of the span that reaches farthest
    for start, stop, i, written in spans:
        if start < end and i != last and (written or writes):
            a, b = sorted((i, last))
            raise ValueError(f"arrays {a} and {b} of the list share memory, and one of them is a result")
        if stop > end:
            end, last, writes = stop, i, written


def check_memory(array: CudaArray, what: str) -> None:
    """ValueError if the driver does not know the memory, which it would copy as if it were pageable host memory."""
    if array.nbytes and _engine.cuda_memory(array.address)[0] != "cuda":
        raise ValueError(
            f"{what} (address {array.address:#x}) is not memory of a CUDA device: its owner may have freed it, or it "
            f"is host memory; give an array on device {array.device}"
        )
