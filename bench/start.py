"""Starts ranks on this machine, as `collectives run` does, and passes their task to them as a command-line argument.

Invariant: a rank imports packages from the same places as this process, whatever its working directory. The argument
contains no secrets, because all users of the host can read it.
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
    """Run the benchmark `plan` with `ranks` ranks on this machine, and return the exit code.

    `screen` says how to print. `store` is the URL of the store through which the ranks find each other; if empty, one
    is made. If `bind`, each rank is bound to cores of its own. Raises: StartError or OSError if a rank cannot be
    started.
    """
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
    """Run the function `main` of the Python module `module` in `ranks` processes, and return the exit code.

    Each process is one rank of a job, and gets `task` as JSON in its first command-line argument. `store` is the URL of
    the store through which the ranks find each other; if empty, one is made. If `bind`, each rank is bound to cores of
    its own. `addresses` is the option of `collectives run`. `environment` has additional environment variables.

    Raises: StartError or OSError if a process cannot be started. If signal n interrupts this process, SystemExit with
    the code 128 + n, whatever the exit codes of the ranks.
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
    """Run the function `main` of the Python module `module` in `ranks` processes, and return the result of rank 0.

    Each process is one rank of a job, and gets `task` as JSON. The function `main` must call the function `answering`.
    `environment` has additional environment variables. Raises: StartError or OSError if a process cannot be started;
    RuntimeError if a rank failed.
    """
    with tempfile.TemporaryDirectory(prefix="collectives-bench-") as folder:
        file = Path(folder) / "answer"
        code = processes(module, {"task": dict(task), "file": str(file)}, ranks, environment=environment)
        if code != 0:
            raise RuntimeError(f"a rank of {ranks} ended with exit code {code}")
        return json.loads(file.read_text())


def answering(name: str, run: Callable[[dict[str, Any]], Any]) -> None:
    """Call `run` with the task of this process, report its result, and exit.

    Call this in the processes that the function `answer` starts; `answer` then returns the result of rank 0. On rank 0,
    `run` must return a value that JSON can represent; on other ranks, None. An error that `run` raises is printed after
    `name`.
    """
    given = json.loads(sys.argv[1])

    def work() -> int:
        if (found := run(given["task"])) is not None:
            Path(given["file"]).write_text(json.dumps(found))
        return 0

    sys.exit(guarded(name, work))
