"""Concatenates the rows of all ranks' sparse gradients in rank order; each rank may have any number of rows.

Invariant: each rank sends one message for all sparse gradients of a bucket; the result is the same on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from collectives.arrays.array import Array
from collectives.arrays.recycle import aligned
from collectives.native.errors import DesyncError

_WORD: Final = 8  # bytes: each part of a message begins at a multiple, where any dtype is aligned


class Rows(NamedTuple):
    """A sparse gradient of a variable, such as an embedding: `values[i]` belongs to row `indices[i]` of the variable.

    A row may occur several times; its values are then added up.
    """

    indices: Array
    values: Array


def pack(entries: Sequence[Rows]) -> npt.NDArray[np.uint8]:
    """Encodes the sparse gradients `entries` as one message, an array of uint8.

    The message contains the number of rows of each gradient, then the indices and values of each gradient. Each part
    begins at a multiple of 8 bytes.
    """
    counts = np.array([len(entry.indices) for entry in entries], np.int64)
    parts = [counts, *(np.ascontiguousarray(array) for entry in entries for array in entry)]
    message = aligned((sum(_padded(part.nbytes) for part in parts),), np.dtype(np.uint8))
    start = 0
    for part in parts:
        # Flat, and as bytes: not every array can be viewed as another dtype in its own shape.
        message[start : start + part.nbytes] = part.reshape(-1).view(np.uint8)
        message[start + part.nbytes : start + _padded(part.nbytes)] = 0
        start += _padded(part.nbytes)
    return message


def unpack(everyones: npt.NDArray[np.uint8], like: Sequence[Rows], size: int) -> list[Rows]:
    """Decodes `everyones`, all ranks' messages from `pack` joined in rank order; returns each gradient's rows.

    `like`: this rank's gradients, whose rows have the dtypes and shapes of the rows in `everyones`. `size`: the number
    of ranks. Raises DesyncError for invalid bytes.
    """
    joined: list[list[Rows]] = [[] for _ in like]
    start = 0
    for rank in range(size):
        counts, start = _take(everyones, start, np.empty(0, np.int64), len(like), rank)
        for entry, pieces, count in zip(like, joined, counts.tolist(), strict=True):
            indices, start = _take(everyones, start, entry.indices, count, rank)
            values, start = _take(everyones, start, entry.values, count, rank)
            pieces.append(Rows(indices, values))
    if start != everyones.nbytes:
        raise DesyncError(
            f"sparse gradients: {everyones.nbytes} bytes were received, but their counts describe {start}"
        )
    return [Rows(*map(_joined, zip(*pieces, strict=True))) for pieces in joined]


def _take(data: npt.NDArray[np.uint8], start: int, like: Array, count: int, rank: int) -> tuple[Array, int]:
    """A view of `data` from `start` on as `count` rows like those of `like`; and the offset after these rows."""
    nbytes = count * math.prod(like.shape[1:]) * like.itemsize
    if count < 0 or start + _padded(nbytes) > data.nbytes:
        raise DesyncError(f"sparse gradients: rank {rank} announces {count} rows, more than came from it")
    rows = data[start : start + nbytes].view(like.dtype).reshape(count, *like.shape[1:])
    return rows, start + _padded(nbytes)


def _joined(pieces: Sequence[Array]) -> Array:
    whole = aligned((sum(map(len, pieces)), *pieces[0].shape[1:]), pieces[0].dtype)
    return np.concatenate(pieces, out=whole)


def _padded(nbytes: int) -> int:
    return -(-nbytes // _WORD) * _WORD
