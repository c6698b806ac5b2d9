"""Starts ranks on this machine, as `collectives run` does, with what they are to do as one argument.

Invariant: a rank finds the packages that this process has found, whatever lies in the folder it is started in. The
argument says nothing secret: it can be read by everybody on the host.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from collectives.bench.exits import guarded
from collectives.bench.plan import Plan
from collectives.bench.report import Screen
from collectives.commands.launcher import Job, launch

_BOOT: Final = (
    "import sys, json; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "import importlib; importlib.import_module(sys.argv.pop(1)).main()"
)


def start(plan: Plan, screen: Screen, ranks: int, store: str, bind: bool) -> int:
    """Measure with so many ranks; the exit code. Raises as `processes`."""
    task = {"plan": plan.to_json(), "screen": asdict(screen), "cwd": os.getcwd()}
    return processes("collectives.bench.rank", task, ranks, store=store, bind=bind, addresses=plan.addresses)


def processes(
    module: str,
    task: Mapping[str, Any],
    ranks: int,
    *,
    store: str = "",
    bind: bool = False,
    addresses: str = "random",
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run `main()` of that module in so many processes, which gets `task` as JSON; the exit code.

    Raises StartError, OSError; SystemExit of 128 + n where signal n told us to end, however the ranks ended then (one
    that has just been started fails in any way): nothing more is to be measured.
    """
    command = [sys.executable, "-c", _BOOT, json.dumps(sys.path), module, json.dumps(task)]
    outcome = launch(
        Job(
            command=command,
            ranks=ranks,
            store=store,
            prefix=False,
            bind=bind,
            addresses=addresses,
            environment=environment or {},
        )
    )
    if outcome.ended_by is not None:
        sys.exit(128 + outcome.ended_by)
    return outcome.status


def answer(module: str, task: Mapping[str, Any], ranks: int, environment: Mapping[str, str] | None = None) -> Any:
    """What `answering` leaves on rank 0 of so many processes of that module.

    Raises as `processes`; RuntimeError where a rank failed.
    """
    with tempfile.TemporaryDirectory(prefix="collectives-bench-") as folder:
        file = Path(folder) / "answer"
        code = processes(module, {"task": dict(task), "file": str(file)}, ranks, environment=environment)
        if code != 0:
            raise RuntimeError(f"a rank of {ranks} ended with exit code {code}")
        return json.loads(file.read_text())


def answering(name: str, run: Callable[[dict[str, Any]], Any]) -> None:
    """`main()` of such a module. `run` gets what was told; what it gives on rank 0, as JSON takes it, is the answer.

    It gives None on all others. What goes wrong is said in a line that begins with `name`.
    """
    given = json.loads(sys.argv[1])

    def work() -> int:
        if (found := run(given["task"])) is not None:
            Path(given["file"]).write_text(json.dumps(found))
        return 0

    sys.exit(guarded(name, work))
