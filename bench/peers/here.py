"""The common part of systems that run in the benchmark's own interpreter, with its installed packages.

Invariant: nothing is installed, and a rank finds the packages that the benchmark's process has found. Imports nothing
but the standard library and NumPy before `packages` was called.
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
    """Where packages are; `packages` looks there."""
    return {_PATH: json.dumps(sys.path)}


def packages() -> None:
    """In a worker: from now on, imports find what the benchmark's process finds."""
    sys.path[:] = json.loads(os.environ[_PATH])
    del sys.modules["collectives"]  # the stand-in of `worker.BOOT`; the next import takes the real one


def missing(framework: str) -> str | None:
    """Why that framework cannot be measured in this interpreter, or None."""
    if find_spec(framework) is not None:
        return None
    return f"{framework} is not installed in {sys.executable}: pip install {framework}"


class Gradients:
    """A rank's inputs in a case that is a list of gradients, and the expected results."""

    def __init__(self, case: Case, rank: int, arrays: Sequence[Array]) -> None:
        """`arrays` together have the case's elements, in their order; the case adds them up."""
        self._case: Final = case
        self._rank: Final = rank
        self.arrays: Final = tuple(arrays)

    def fill(self, salt: int) -> None:
        """Overwrite them with small whole numbers."""
        table = self._values(salt).table(self._rank)
        for array, start in self._placed(self.arrays):
            values.fill(array, table, start)

    def wrong(self, results: Sequence[Any], salt: int) -> int:
        """The number of elements of `results`, objects with the buffer protocol, that differ from those of `salt`.

        All elements count if number or sizes of the results are wrong.
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
        """Each with its place in the list."""
        return zip(arrays, accumulate((array.size for array in arrays), initial=0), strict=False)
