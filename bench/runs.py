"""Runs the benchmark in new processes, one run after the other, and reads their results.

Invariant: only a complete run has a result.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from collectives.bench.plan import Plan
from collectives.bench.report import Screen
from collectives.bench.start import start


def cores() -> int:
    """Return the number of cores on which this process may run."""
    return len(os.sched_getaffinity(0))


class Runs:
    """Runs the benchmark in new processes, one run after the other.

    It reads the results from the JSON file that each run writes into `folder`. `quiet` says how to print. `addresses`
    is the option of `collectives run`. The attribute `wrong` is true after a run with a wrong result.
    """

    def __init__(self, quiet: Screen, folder: Path, addresses: str) -> None:
        self._screen: Final = quiet
        self._addresses: Final = addresses
        self._file: Final = folder / "run.json"
        self.wrong = False

    def measure(self, plan: Plan, ranks: int, bind: bool | None = None) -> dict[str, Any] | None:
        """Run `plan` with `ranks` ranks; return the JSON document of the run, or None if the run failed.

        If `bind`, each rank gets cores of its own. None: if there are enough cores, as MPI libraries do by default.
        Raises: StartError or OSError if a rank cannot be started.
        """
        self._file.unlink(missing_ok=True)
        own_cores = ranks <= cores() if bind is None else bind
        chosen = replace(plan, json=str(self._file), addresses=self._addresses)
        code = start(chosen, self._screen, ranks, "", own_cores)
        self.wrong |= code == 1
        if not self._file.exists():
            return None
        document: dict[str, Any] = json.loads(self._file.read_text())
        return document if document["complete"] else None
