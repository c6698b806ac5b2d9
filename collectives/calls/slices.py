"""Divides a collective on arrays of a CUDA device into slices, each of which is a smaller collective in host memory.

Invariant: pure functions of addresses and sizes. All ranks divide a call into the same slices: of each part of n
elements, slice `i` of `count` has those from n * i // count to n * (i + 1) // count.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from collectives.arrays.cuda import CudaArray
from collectives.arrays.dtypes import Dtype
from collectives.calls.prepare import Shape

_MOST_EQUAL: Final = 16  # slices, unless they would become larger than `_LARGEST`
_SMALLEST: Final = 1 << 20  # bytes
_LARGEST: Final = 4 << 20
_ALIGNMENT: Final = 256  # bytes, of a region of host memory

ELEMENTWISE: Final = ("allreduce", "reduce", "broadcast", "scan", "exscan")

Copies = list[tuple[int, int, int]]  # offset in host memory, address on the device, bytes


class Parts(NamedTuple):
    """An array on a device in one part or several: for each its address, and its number of elements.

    No parts: this rank has no such array.
    """

    addresses: tuple[int, ...]
    counts: tuple[int, ...]


NOTHING: Final = Parts((), ())


def parts(array: CudaArray | None, counts: Sequence[int] = ()) -> Parts:
    """Returns `array` divided into parts of `counts` elements; in one part, if there are no counts."""
    if array is None:
        return NOTHING
    counts = tuple(counts) or (array.size,)
    before = (0, *accumulate(counts[:-1]))
    return Parts(tuple(array.address + n * array.dtype.itemsize for n in before), counts)


class Sliced(NamedTuple):
    """A collective and how it is divided.

    - `dtype`, `op`, `root`: as the call has them
    - `inp`, `out`: what this rank reads and writes on the device
    - `shares`: the elements of each rank's part; of elementwise collectives, only the elements of the array
    - `rank`: this rank
    - `uneven`: whether parts may differ
    - `in_place`: whether the collective runs in the memory that it reads
    - `slices`: the number of slices
    - `divisor`: as in `Shape`
    """

    name: str
    dtype: Dtype
    op: str
    root: int
    inp: Parts
    out: Parts
    shares: tuple[int, ...]
    rank: int
    uneven: bool
    in_place: bool
    slices: int
    divisor: int = 0

    def shape(self, index: int) -> Shape:
        """Returns the collective of slice `index`, as the C++ engine runs it."""
        shares = tuple(_length(n, index, self.slices) for n in self.shares)
        name, total = self.name, sum(shares)
        if name in ELEMENTWISE:
            inp = 0 if name == "broadcast" else total
            aliased = self.in_place and name != "broadcast"  # which has no input
            return Shape(name, self.dtype, inp, total, total, self.op, self.root, aliased, divisor=self.divisor)
        own = shares[self.rank]
        if name == "alltoall":
            return Shape(name, self.dtype, total, total, total)
        if name == "reduce_scatter":
            agreed = f"counts {list(shares)}" if self.uneven else ""
            given = shares if self.uneven else total
            return Shape(name, self.dtype, given, own, total, self.op, purpose=agreed, divisor=self.divisor)
        whole, agreed_count = (shares, 0) if self.uneven else (total, own)
        if name == "scatter":
            return Shape(name, self.dtype, whole, own, agreed_count, root=self.root)
        return Shape(name, self.dtype, own, whole, agreed_count, root=self.root)

    @property
    def input_bytes(self) -> int:
        """Bytes of host memory for the input of one slice."""
        return _region(self.inp, self.slices, self.dtype.itemsize)

    @property
    def slot_bytes(self) -> int:
        """Bytes of host memory for the input and the output of one slice."""
        out = _region(self.out, self.slices, self.dtype.itemsize)
        return max(self.input_bytes, out) if self.in_place else self.input_bytes + out

    @property
    def output_offset(self) -> int:
        """Where the output of a slice begins in its host memory, in bytes."""
        return 0 if self.in_place else self.input_bytes

    def fetched(self, index: int, offset: int) -> Copies:
        """The copies to the host before slice `index` runs, whose host memory begins at `offset`."""
        return _copies(self.inp, index, self.slices, offset, self.dtype.itemsize)

    def put(self, index: int, offset: int) -> Copies:
        """The copies to the device after slice `index`."""
        return _copies(self.out, index, self.slices, offset + self.output_offset, self.dtype.itemsize)


def count_of(nbytes: int) -> int:
    """The number of slices of a call; `nbytes`: of the largest array of all ranks."""
    return max(1, min(_MOST_EQUAL, nbytes // _SMALLEST), -(-nbytes // _LARGEST))


def elements(array: Parts, index: int, count: int) -> int:
    """The number of elements of an array in slice `index` of `count`."""
    return sum(_length(n, index, count) for n in array.counts)


def _length(n: int, index: int, count: int) -> int:
    return n * (index + 1) // count - n * index // count


def _region(array: Parts, count: int, unit: int) -> int:
    most = sum(-(-n // count) for n in array.counts) * unit
    return -(-most // _ALIGNMENT) * _ALIGNMENT


def _copies(array: Parts, index: int, count: int, offset: int, unit: int) -> Copies:
    found = []
    for start, n in zip(array.addresses, array.counts, strict=True):
        nbytes = _length(n, index, count) * unit
        if nbytes:
            found.append((offset, start + n * index // count * unit, nbytes))
        offset += nbytes
    return found
