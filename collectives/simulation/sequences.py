"""Arrays that hold many sequences one after another, and numbers that say which sequences are equal.

Invariant: two rows or sequences get the same number exactly if they are equal. No hashes are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from collectives.simulation.relations import Array

_MOST: Final = 1 << 62


def starts(values: Array, count: int) -> Array:
    """Where the entries of each number from 0 to `count` - 1 begin in the sorted array `values`.

    The last item of the result, after those of the numbers, is the length of `values`.
    """
    return np.append(0, np.cumsum(np.bincount(values, minlength=count)))


def spread(begins: Array, chosen: Array) -> tuple[Array, Array]:
    """The positions of all entries of the numbers `chosen` in a sorted array; `begins` is its result of `starts`.

    Returns two arrays with an item for each entry: the index of its number in `chosen`, and the entry's position.
    """
    lengths = begins[chosen + 1] - begins[chosen]
    owner = np.repeat(np.arange(chosen.size), lengths)
    begin = np.repeat(begins[chosen] - np.cumsum(lengths) + lengths, lengths)
    return owner, begin + np.arange(owner.size)


def turns(lengths: Array) -> tuple[Array, Array]:
    """For sequences of these lengths, one after another: each entry's sequence, and its place within the sequence."""
    owner = np.repeat(np.arange(lengths.size), lengths)
    return owner, np.arange(owner.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def columns(rows: Sequence[Iterable[Array]], count: int) -> list[Array]:
    """Joins the first arrays of all `rows`, then the second arrays, and so on: `count` arrays."""
    return [np.concatenate(column) for column in zip(*rows, strict=True)] or [np.zeros(0, np.int64)] * count


def numbered(*parts: Array) -> Array:
    """A number from 0 on for each row of the columns `parts`; equal rows have equal numbers."""
    found, span = np.zeros(parts[0].size, np.int64), 1
    for column in parts:
        part = np.unique(column, return_inverse=True)[1] if column.dtype.kind == "f" else column
        low = int(part.min(initial=0))
        width = int(part.max(initial=0)) - low + 1
        if span * width > _MOST:
            _, found = np.unique(found, return_inverse=True)
            span = int(found.max(initial=0)) + 1
        found, span = found * width + (part - low), span * width
    return np.unique(found, return_inverse=True)[1]


def folded(items: Array, lengths: Array) -> Array:
    """A number for each of several sequences; equal sequences have equal numbers, the empty sequence has number 0.

    `items`: the items of all sequences, one sequence after another, as numbers from 0 on. `lengths`: how many items
    each sequence has.

    Neighbours are joined in pairs, pairs in fours and so on. A joined number is larger than all numbers before it, so
    a number stands for one tree of joins, and the tree for one sequence.
    """
    result = np.zeros(lengths.size, np.int64)
    which = np.flatnonzero(lengths)
    lengths, items = lengths[which], items + 1
    above = int(items.max(initial=0)) + 1
    while which.size:
        begins = np.cumsum(lengths) - lengths
        single = lengths == 1
        result[which[single]] = items[begins[single]]
        owner, place = turns(lengths)
        items = items[~single[owner]]
        place, longest = place[~single[owner]], np.repeat(lengths, lengths)[~single[owner]]
        which, lengths = which[~single], lengths[~single]
        left = np.flatnonzero((place % 2 == 0) & (place + 1 < longest))
        joined = above + numbered(items[left], items[left + 1])
        above = int(joined.max(initial=above)) + 1
        items[left] = joined
        items, lengths = items[place % 2 == 0], (lengths + 1) // 2
    return result
