"""The input data of a rank in one case of the benchmark, and the results that the collective has to give.

Invariant: only this module defines which results the benchmark expects, so our results and those of other systems are
compared with the same values. The only package that it imports is NumPy, as in `values`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from collectives.bench import values
from collectives.bench.cases import Case
from collectives.bench.values import Array, Values

Part = tuple[int, int, Array, int]  # first element, last element + 1, repeated table, index where the table begins


@dataclass(frozen=True, slots=True)
class Data:
    """The test data of one rank for a collective: the input, and the output that is correct.

    `salt` selects the data; each value gives other data.
    """

    case: Case
    dtype: np.dtype[Any]
    rank: int
    salt: int

    @property
    def sends(self) -> bool:
        """Whether this rank passes data to the call."""
        return self.case.collective not in ("broadcast", "scatter") or self.rank == self.case.root

    @property
    def receives(self) -> bool:
        if self.case.collective == "exscan":
            return self.rank > 0
        return self.case.collective not in ("reduce", "gather") or self.rank == self.case.root

    def fill(self, array: Array) -> None:
        """Write this rank's test input into `array`. In a broadcast or scatter, only the root has an input."""
        if self.sends:
            values.fill(array, self._values.table(self.rank))

    def spoil(self, array: Array) -> None:
        """Overwrite every element of the output `array` with a wrong value.

        So elements that the collective does not write are detected later. The input must be in another array.
        """
        if self.receives and not (self.case.collective == "broadcast" and self.sends):
            for start, stop, table, phase in self._expected():
                values.spoil(array.reshape(-1)[start:stop], table, phase)

    def wrong(self, array: Array | None) -> int:
        """Compare all elements of the output `array` with the correct output; return how many are wrong.

        If `array` is None or has an unexpected length, all elements count as wrong: the correct output's length is
        returned.
        """
        if not self.receives:
            return 0
        if array is None or array.size != self.case.elements_out:
            return self.case.elements_out
        flat = array.reshape(-1)
        slack = values.slack(self.dtype, self.case.op, self.case.ranks)
        return sum(
            values.wrong(flat[start:stop], table, phase, slack) for start, stop, table, phase in self._expected()
        )

    @property
    def _values(self) -> Values:
        whole = max(self.case.elements_in, self.case.elements_out)
        return Values(self.dtype, self.case.op, self.case.ranks, self.salt, whole)

    def _expected(self) -> Iterator[Part]:
        count, data = self.case.count, self._values
        match self.case.collective:
            case "allreduce" | "reduce":
                yield 0, count, data.total(), 0
            case "scan":
                yield 0, count, data.total(self.rank + 1), 0
            case "exscan":
                yield 0, count, data.total(self.rank), 0
            case "reduce_scatter":
                yield 0, count, data.total(), self.rank * count
            case "broadcast":
                yield 0, count, data.table(self.case.root), 0
            case "allgather" | "gather":
                for rank in range(self.case.ranks):
                    yield rank * count, (rank + 1) * count, data.table(rank), 0
            case "alltoall":
                for rank in range(self.case.ranks):
                    yield rank * count, (rank + 1) * count, data.table(rank), self.rank * count
            case "scatter":
                yield 0, count, data.table(self.case.root), self.rank * count
