"""The results of workers: by scenario and rank.

Invariant: every rank has a result of every requested scenario, or the assertion shows the job's output.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.launched import Launched, launched
from tests.warm.parents import KERAS, QUICK_XLA, TENSORFLOW

_HERE = Path(__file__).parent


class Results:
    """`results["fit"]` is a list: the result of each rank."""

    def __init__(self, job: Launched) -> None:
        self.job = job
        lines = {rank: [json.loads(x) for x in lines if x.startswith("[")] for rank, lines in job.lines.items()}
        self._found = {rank: dict(results) for rank, results in lines.items()}

    def __getitem__(self, scenario: str) -> list[Any]:
        there = [results[scenario] for results in self._found.values() if scenario in results]
        assert len(there) == len(self._found), f"{scenario}: {self.job.stdout}\n{self.job.stderr}"
        return there

    def survivors(self, scenario: str) -> list[Any]:
        return [results[scenario] for results in self._found.values() if scenario in results]


def work(ranks: int, script: str, *arguments: str, backend: str = "tensorflow") -> Results:
    """With Keras on `backend`, which is imported already."""
    warm = TENSORFLOW if backend == "tensorflow" else KERAS
    flags: dict[str, Any] = {"XLA_FLAGS": QUICK_XLA} if backend == "jax" else {}
    return Results(launched(ranks, _HERE / script, *arguments, warm=warm, KERAS_BACKEND=backend, **flags))


def same(found: list[Any]) -> Any:
    """The result that all ranks have in common."""
    assert all(each == found[0] for each in found), found
    return found[0]
