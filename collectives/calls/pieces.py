"""The calls of NCCL that make up an operation on device memory: one, or several that run together.

Invariant: pure functions of addresses and sizes. Parts without elements have no piece, on both sides of a message.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from collectives.arrays.cuda import CudaArray
from collectives.arrays.dtypes import name_of
from collectives.calls.targets import ROWS
from collectives.native import _engine


class Piece(NamedTuple):
    """One call of NCCL, as `_engine.NcclMember.prepare` takes it."""

    kind: str
    inp: int
    out: int
    elements: int
    unit: int
    dtype: str
    op: int
    peer: int


def collective(name: str, x: CudaArray | None, out: CudaArray | None, size: int, op: str, root: int) -> list[Piece]:
    """NCCL's calls for a collective with equal parts on all ranks. `x`, `out`: None if this rank has no such array."""
    one = x or out
    assert one is not None
    whole = x is not None and name in ROWS
    count = one.size // size if whole else x.size if x is not None else one.size
    return [_piece(name, x, out, one, count, op, root)]


def many(arrays: Sequence[tuple[CudaArray, CudaArray]], op: str) -> list[Piece]:
    """An allreduce of each array."""
    return [_piece("allreduce", x, out, x, x.size, op, 0) for x, out in arrays if x.size]


def allgatherv(x: CudaArray, out: CudaArray, rows: Sequence[int], rank: int) -> list[Piece]:
    """Every rank broadcasts its rows into their place."""
    parts = _parts(out, rows)
    return broadcasts(x, [(root, x.address, address, count) for root, address, count in parts], rank)


def gatherv(x: CudaArray, out: CudaArray | None, rows: Sequence[int], root: int) -> list[Piece]:
    """NCCL's calls: every rank sends its rows to the root, the root also to itself. `out`: None on other ranks."""
    return [*sends(x, [(root, x.address, x.size)]), *([] if out is None else recvs(out, _parts(out, rows)))]


def scatterv(x: CudaArray | None, out: CudaArray, rows: Sequence[int], root: int) -> list[Piece]:
    """NCCL's calls: the root sends every rank its rows. `x`: None on other ranks."""
    return [*([] if x is None else sends(x, _parts(x, rows))), *recvs(out, [(root, out.address, out.size)])]


def alltoallv(x: CudaArray, out: CudaArray, leaving: Sequence[int], coming: Sequence[int]) -> list[Piece]:
    """Every rank sends every rank its rows."""
    return [*sends(x, _parts(x, leaving)), *recvs(out, _parts(out, coming))]


def reduce_scatterv(x: CudaArray, out: CudaArray, rows: Sequence[int], rank: int, op: str) -> list[Piece]:
    """The rows of each rank are reduced to it."""
    parts = _parts(x, rows)
    return reductions(x, [(root, address, out.address, count) for root, address, count in parts], rank, op)


# A block of an array that a rank, the root, has or gets: the root, the addresses of input and output, and the number of
# elements. The address that only the root uses may be wrong on other ranks.
Block: TypeAlias = tuple[int, int, int, int]


def broadcasts(like: CudaArray, blocks: Sequence[Block], rank: int) -> list[Piece]:
    """Each root sends its block to all ranks. Blocks have the dtype of `like`."""
    return [
        Piece("broadcast", inp if root == rank else 0, out, count, like.dtype.itemsize, "", 0, root)
        for root, inp, out, count in blocks
        if count
    ]


def reductions(like: CudaArray, blocks: Sequence[Block], rank: int, op: str) -> list[Piece]:
    """Each block is reduced to its root. Blocks have the dtype of `like`."""
    unit, dtype, code = like.dtype.itemsize, name_of(like.dtype), _engine.OPS[op]
    return [
        Piece("reduce", inp, out if root == rank else 0, count, unit, dtype, code, root)
        for root, inp, out, count in blocks
        if count
    ]


def parts_to_root(part: CudaArray, whole: CudaArray | None, rows: Sequence[int], root: int) -> list[Piece]:
    """NCCL's calls: every rank sends its part to the root, which has its own part already. `whole`: as in gatherv."""
    if whole is None:
        return list(sends(part, [(root, part.address, part.size)]))
    return list(recvs(whole, [one for one in _parts(whole, rows) if one[0] != root]))


def parts_from_root(part: CudaArray, whole: CudaArray | None, rows: Sequence[int], root: int) -> list[Piece]:
    """NCCL's calls: the root sends every other rank its part. `whole`: None on other ranks."""
    if whole is None:
        return list(recvs(part, [(root, part.address, part.size)]))
    return list(sends(whole, [one for one in _parts(whole, rows) if one[0] != root]))


def send(x: CudaArray, dest: int) -> list[Piece]:
    return list(sends(x, [(dest, x.address, x.size)]))


def recv(out: CudaArray, source: int) -> list[Piece]:
    return list(recvs(out, [(source, out.address, out.size)]))


def _piece(
    name: str, x: CudaArray | None, out: CudaArray | None, like: CudaArray, count: int, op: str, root: int
) -> Piece:
    dtype = name_of(like.dtype) if op else ""
    inp, to = (0 if array is None else array.address for array in (x, out))
    return Piece(name, inp, to, count, like.dtype.itemsize, dtype, _engine.OPS[op or "sum"], max(root, 0))


def _parts(array: CudaArray, rows: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """For each rank that has rows of `array`: the rank, the address of its rows, and their number of elements."""
    row = math.prod(array.shape[1:])
    start = array.address
    for rank, count in enumerate(rows):
        if count * row:
            yield rank, start, count * row
        start += count * row * array.dtype.itemsize


def sends(x: CudaArray, parts: Iterable[tuple[int, int, int]]) -> Iterator[Piece]:
    """Messages; `parts`: for each its receiver, its address, and its number of elements of the dtype of `x`."""
    for peer, address, count in parts:
        if count:
            yield Piece("send", address, 0, count, x.dtype.itemsize, "", 0, peer)


def recvs(out: CudaArray, parts: Iterable[tuple[int, int, int]]) -> Iterator[Piece]:
    """The same on the receiver; `parts` begin with the sender."""
    for peer, address, count in parts:
        if count:
            yield Piece("recv", 0, address, count, out.dtype.itemsize, "", 0, peer)
