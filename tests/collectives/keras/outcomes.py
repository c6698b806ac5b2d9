"""The results of workers: by scenario and rank.

Invariant: every rank has a result of every requested scenario, or the assertion shows the job's output.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.launched import Launched, launched
from tests.warm.parents import TENSORFLOW

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
    """On every backend: Keras's `set_random_seed` imports TensorFlow wherever it is installed."""
    return Results(launched(ranks, _HERE / script, *arguments, warm=TENSORFLOW, KERAS_BACKEND=backend))


def same(found: list[Any]) -> Any:
    """The result that all ranks have in common."""
    assert all(each == found[0] for each in found), found
    return found[0]
