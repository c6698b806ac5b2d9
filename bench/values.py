"""Makes inputs for collectives whose exact result is known, and compares results with it.

Invariant: whatever the order of reduction, no dtype rounds an intermediate result: all values are integers small enough
for bfloat16's 8-bit significand (averages: for up to 128 ranks). Values depend on the rank and on a seed, `salt`. All
elements are compared. Needs no package but NumPy, because other systems run this file with a Python of their own.

An array repeats a table of `PERIOD` random values. `PERIOD` is a prime, so a block's offset is hardly ever a multiple
of it, and a block in the wrong place differs from the expected values. Arrays are filled and compared with the table
at the speed of memory, without a second array of the same size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

PERIOD: Final = 65521
_EXACT: Final = 256  # integers up to this are exact in bfloat16
_DOUBLING: Final = 6  # ranks whose values in a product may be 2: 2**6 fits into an int8

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Values:
    """The test data for a collective: the inputs of all ranks, and the correct result.

    `salt` selects the data. `op` is "none" if nothing is reduced. No array has more than `length` elements.
    """

    dtype: np.dtype[Any]
    op: str
    ranks: int
    salt: int
    length: int

    def table(self, rank: int) -> Array:
        """Return an array of at most `PERIOD` test values. The input of `rank` is this array, repeated."""
        if self.op == "avg" and rank == self.ranks - 1:
            return self._completing()
        return self._random(rank)

    def total(self, ranks: int | None = None) -> Array:
        """Return the reduction of the arrays that `table` returns for the first `ranks` ranks.

        If `ranks` is None, all ranks count. A rank's input repeats the rank's table, so the correct result repeats the
        returned array.
        """
        if self.op == "avg" and self.dtype.kind in "iu":  # the sum may wrap around
            whole = self.table(0)
            for rank in range(1, self.ranks):
                whole += self.table(rank)
            return np.trunc(whole / self.ranks).astype(self.dtype)
        if self.op == "avg":
            whole = self.table(0).astype(np.complex128)
            for rank in range(1, self.ranks):
                whole += self.table(rank)
            whole = np.round(whole / self.ranks)
            return whole.astype(self.dtype) if self.dtype.kind == "c" else whole.real.astype(self.dtype)
        result = self.table(0)
        if self.op in _LOGICAL:
            result = result.astype(bool)
        for rank in range(1, self.ranks if ranks is None else ranks):
            result = _COMBINE[self.op](result, self.table(rank)).astype(result.dtype)
        return result.astype(self.dtype)

    def _random(self, rank: int) -> Array:
        random = np.random.default_rng([self.salt, rank])
        n = min(self.length, PERIOD)
        kind = self.dtype.kind
        if kind == "b":
            return random.integers(0, 2, n).astype(bool)
        if self.op == "prod":
            units = np.array({"c": [1, -1, 1j, -1j], "u": [1]}.get(kind, [1, -1]))
            factor = 2 if rank < _DOUBLING else 1
            return (random.choice(units, n) * random.integers(1, factor + 1, n)).astype(self.dtype)
        if kind in "iu" and self.op not in ("sum", "avg"):
            return random.integers(0, 128, n).astype(self.dtype)
        if rank >= _EXACT - 1 and self.op in ("sum", "avg"):
            return np.zeros(n, self.dtype)
        most = max(1, (_EXACT - self.ranks) // self.ranks) if self.op in ("sum", "avg") else _EXACT
        real = random.integers(0, most + 1, n)
        return (real + 1j * random.integers(0, most + 1, n) if kind == "c" else real).astype(self.dtype)

    def _completing(self) -> Array:
        """The last rank's table if `op` is "avg", chosen so that every sum is a multiple of the number of ranks."""
        whole = np.zeros(min(self.length, PERIOD), np.complex128)
        for rank in range(self.ranks - 1):
            whole += self._random(rank)
        missing = np.mod(-whole.real, self.ranks) + 1j * np.mod(-whole.imag, self.ranks)
        return missing.astype(self.dtype) if self.dtype.kind == "c" else missing.real.astype(self.dtype)


def touched(array: Array) -> Array:
    """Fill `array` with ones, and return it, so that the kernel allocates its memory pages before anything is timed.

    Zeros are avoided, because some memory stores zeros in half the time.
    """
    array.fill(1)
    return array


def fill(array: Array, table: Array, phase: int = 0) -> None:
    """Overwrite `array` with repetitions of the array `table`, beginning with the element `phase` of `table`."""
    for part, values in _parts(array, table, phase):
        part[...] = values


def spoil(array: Array, table: Array, phase: int = 0) -> None:
    """Overwrite `array` so that every element differs from what `fill(array, table, phase)` would write."""
    opposite = ~table if table.dtype == bool else (~table.view(np.uint8)).view(table.dtype)
    fill(array, opposite, phase)


def wrong(array: Array, table: Array, phase: int = 0, slack: float = 0.0) -> int:
    """Return the number of elements in `array` that differ from what `fill(array, table, phase)` would write.

    An element counts if its relative error exceeds `slack`. NaN always counts.
    """
    bad = 0
    with np.errstate(all="ignore"):  # a wrong value may be anything
        for part, values in _parts(array, table, phase):
            good = part == values if slack == 0.0 else np.abs(part - values) <= slack * np.abs(values)
            bad += part.size - int(np.count_nonzero(good))
    return bad


def slack(dtype: np.dtype[Any], op: str, ranks: int) -> float:
    """Return the relative error that is allowed in a result: 0, unless `op` is "avg".

    An average of other numbers than integers may have a rounding error, since it is multiplied by 1/`ranks`. `dtype` is
    the type of the elements.
    """
    if op != "avg" or dtype.kind in "iu" or ranks & (ranks - 1) == 0:
        return 0.0
    return 2.0 ** {2: -7, 4: -22, 8: -51}[dtype.itemsize // (2 if dtype.kind == "c" else 1)]


def _parts(array: Array, table: Array, phase: int) -> Iterator[tuple[Array, Array]]:
    """Cut `array` into consecutive parts; yields each part with the values of `table` that belong there."""
    flat = array.reshape(-1)
    phase %= PERIOD
    if len(table) < PERIOD:  # the array is no longer than one period, and its table was cut to that length
        yield flat, table[phase : phase + flat.size]
        return
    start = 0
    while start < flat.size:
        stop = min(flat.size, start + PERIOD - phase)
        yield flat[start:stop], table[phase : phase + stop - start]
        start, phase = stop, 0


_LOGICAL: Final = {"land": np.logical_and, "lor": np.logical_or, "lxor": np.logical_xor}
_COMBINE: Final[dict[str, Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
    **_LOGICAL,
}
