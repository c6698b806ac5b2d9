"""The results of workers: by scenario and rank.

Invariant: every rank has a result of every requested scenario, or the assertion shows the job's output.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.launched import launched
from tests.warm.parents import TENSORFLOW

_HERE = Path(__file__).parent


class Results:
    """`results["fit"]` is a list: the result of each rank. `results.same("fit")` is the common result of all."""

    def __init__(self, size: int, script: str, *arguments: str, warm: tuple[str, ...] = (), **environment: str) -> None:
        job = launched(size, _HERE / script, *arguments, run=(), warm=warm, **environment)
        self._job = job.succeeded()
        self._found = {
            rank: dict(json.loads(line) for line in lines if line.startswith('["'))
            for rank, lines in self._job.lines.items()
        }

    def __getitem__(self, scenario: str) -> list[Any]:
        there = [found[scenario] for found in self._found.values() if scenario in found]
        assert len(there) == len(self._found), f"{scenario}: {self._job.stdout}\n{self._job.stderr}"
        return there

    def same(self, scenario: str) -> Any:
        first, *others = self[scenario]
        assert all(other == first for other in others), (scenario, first, others)
        return first


@cache
def of_tensorflow() -> Results:
    """For both test modules that need TensorFlow: it takes long to import."""
    with tempfile.TemporaryDirectory() as folder:
        return Results(2, "worker_tensorflow.py", folder, warm=TENSORFLOW, KERAS_BACKEND="tensorflow")
