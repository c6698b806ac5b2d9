"""The common part of peers whose processes use the benchmark's own Python and its installed packages.

Invariant: nothing is installed, and a rank of the peer can import the packages that the benchmark can import. Before a
rank calls `packages`, it imports only the standard library and NumPy.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np

from collectives.bench import values
from collectives.bench.cases import Case
from collectives.bench.values import Array, Values

_PATH: Final = "BENCH_IMPORT_PATH"


def commands(python: Path, worker: Sequence[str], ranks: int) -> list[list[str]]:
    return [[str(python), *worker, str(rank)] for rank in range(ranks)]


def environment() -> dict[str, str]:
    """The environment variable from which `packages` reads, in a worker process, where the packages are."""
    return {_PATH: json.dumps(sys.path)}


def packages() -> None:
    """Called in a worker process: makes imports find the packages that the benchmark's process finds."""
    sys.path[:] = json.loads(os.environ[_PATH])
    del sys.modules["collectives"]  # the empty module of `worker.BOOT`; the next import finds the package


def missing(framework: str) -> str | None:
    """The reason that this framework cannot be measured in this interpreter; None if it can."""
    if find_spec(framework) is not None:
        return None
    return f"{framework} is not installed in {sys.executable}: pip install {framework}"


class Gradients:
    """One rank's gradients, the inputs of a case that sums a list of gradients, and the check of the results."""

    def __init__(self, case: Case, rank: int, arrays: Sequence[Array]) -> None:
        """`arrays`: this rank's gradients, together `case.count` elements. The case sums each array over all ranks."""
        self._case: Final = case
        self._rank: Final = rank
        self.arrays: Final = tuple(arrays)

    def fill(self, salt: int) -> None:
        """Overwrite the arrays with small whole numbers chosen by `salt`."""
        table = self._values(salt).table(self._rank)
        for array, start in self._placed(self.arrays):
            values.fill(array, table, start)

    def wrong(self, results: Sequence[Any], salt: int) -> int:
        """The number of wrong elements in `results`, the sums of the inputs that `fill(salt)` wrote on all ranks.

        A result is an object with the buffer protocol. All elements count as wrong if there are too few or too many
        results, or if a result has the wrong size.
        """
        found = [np.asarray(result) for result in results]
        if [array.size for array in found] != [array.size for array in self.arrays]:
            return self._case.count
        table = self._values(salt).total()
        return sum(values.wrong(array, table, start) for array, start in self._placed(found))

    def _values(self, salt: int) -> Values:
        case = self._case
        return Values(np.dtype(case.dtype), case.op, case.ranks, salt, case.count)

    @staticmethod
    def _placed(arrays: Sequence[Array]) -> Iterator[tuple[Array, int]]:
        """Each array, with the position of its first element among the elements of all arrays."""
        return zip(arrays, accumulate((array.size for array in arrays), initial=0), strict=False)
