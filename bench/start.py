"""Starts ranks on this machine, as `collectives run` does, with what they are to do as one argument.

Invariant: a rank finds the packages that this process has found, whatever lies in the folder it is started in. The
argument says nothing secret: it can be read by everybody on the host.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from bench.plan import Plan
from bench.report import Screen
from collectives.commands.launcher import Job, launch

_BOOT: Final = (
    "import sys, json; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "import importlib; importlib.import_module(sys.argv.pop(1)).main()"
)


def start(plan: Plan, screen: Screen, ranks: int, store: str, bind: bool) -> int:
    """Measure with so many ranks; the exit code. Raises StartError, OSError."""
    told = {"plan": plan.to_json(), "screen": asdict(screen), "cwd": os.getcwd()}
    return processes("bench.rank", told, ranks, store=store, bind=bind)


def processes(
    module: str,
    told: Mapping[str, Any],
    ranks: int,
    *,
    store: str = "",
    bind: bool = False,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run `main()` of that module in so many processes; it gets `told` as JSON. Raises StartError, OSError."""
    command = [sys.executable, "-c", _BOOT, json.dumps(sys.path), module, json.dumps(told)]
    return launch(
        Job(command=command, ranks=ranks, store=store, prefix=False, bind=bind, environment=environment or {})
    )
