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
    """Return an environment variable that tells worker processes where this process finds Python packages.

    The function `packages` reads it in the worker process.
    """
    return {_PATH: json.dumps(sys.path)}


def packages() -> None:
    """Let this worker process import the same packages as the process of the benchmark that has started it."""
    sys.path[:] = json.loads(os.environ[_PATH])
    del sys.modules["collectives"]  # the empty module of `worker.BOOT`; the next import finds the package


def missing(framework: str) -> str | None:
    """Return an error text if the package `framework`, such as "torch", is not installed for this interpreter.

    Return None if the package is installed.
    """
    if find_spec(framework) is not None:
        return None
    return f"{framework} is not installed in {sys.executable}: pip install {framework}"


class Gradients:
    """One rank's gradients as test data: the inputs of allreduces, and the check of their results."""

    def __init__(self, case: Case, rank: int, arrays: Sequence[Array]) -> None:
        """`arrays`: this rank's gradients, together `case.count` elements. The case sums each array over all ranks."""
        self._case: Final = case
        self._rank: Final = rank
        self.arrays: Final = tuple(arrays)

    def fill(self, salt: int) -> None:
        """Overwrite this rank's gradients with small integers, as test data.

        `salt` selects the integers; each value gives others.
        """
        table = self._values(salt).table(self._rank)
        for array, start in self._placed(self.arrays):
            values.fill(array, table, start)

    def wrong(self, results: Sequence[Any], salt: int) -> int:
        """Return the number of wrong elements in `results`, the sums over all ranks of what `fill(salt)` has written.

        Each result is an object with the buffer protocol. All elements count as wrong if a result is missing or has the
        wrong size.
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
