"""Ranks in processes of their own, which find the stand-ins, and what each of them prints."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.launched import _CHOSEN, _HOME
from tests.warm.parents import OURS, interpreter

WORKER: Final = Path(__file__).with_name("worker.py")
LIMIT: Final = 60.0  # seconds for a case, on a loaded machine


class Ended(NamedTuple):
    returncode: int
    output: str


def run(
    case: str,
    folder: Path,
    environment: Mapping[str, str],
    size: int = 2,
    each: Mapping[int, Mapping[str, str]] | None = None,
    worker: Path = WORKER,
    limit: float = LIMIT,
    grace: float | None = None,
    before: Sequence[str] = (),
    modules: Sequence[str] = OURS,
) -> list[Ended]:
    """Run a case of the worker on `size` ranks, to its end. `each`: more variables, by rank.

    `case` may be several, with spaces between them, which run one after the other in the same processes. `limit`: in
    seconds, for all. `grace`: seconds that the others have after the first one has ended, if some may never end.
    `before`: the command that runs Python, such as a checker of memory. `modules`: what the worker imports at once.

    Ranks are no children of a launcher, which would end the others when one dies.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("COLLECTIVES_", "NCCL_"))}
    common = {
        **kept,
        **_CHOSEN,
        "PYTHONPATH": os.pathsep.join([str(_HOME), *sys.path]),
        "COLLECTIVES_CALIBRATE": "off",
        "COLLECTIVES_STORE": f"file://{folder}/store",
        "COLLECTIVES_SIZE": str(size),
        **environment,
    }
    outputs = [folder / f"output-{rank}" for rank in range(size)]
    ranks = []
    try:
        for rank, output in enumerate(outputs):
            own = {"COLLECTIVES_RANK": str(rank), **((each or {}).get(rank, {}))}
            with output.open("w") as file:
                variables = {**common, **own}
                program = [*before, sys.executable] if before else [interpreter(modules, variables)]
                command = [*program, str(worker), *case.split()]
                ranks.append(subprocess.Popen(command, env=variables, stdout=file, stderr=file))
        until = time.monotonic() + limit
        while None in [one.poll() for one in ranks] and time.monotonic() < until:
            if grace is not None and any(one.returncode is not None for one in ranks):
                until, grace = min(until, time.monotonic() + grace), None
            time.sleep(0.02)
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    return [Ended(one.returncode, output.read_text()) for one, output in zip(ranks, outputs, strict=True)]


def succeed(ended: list[Ended], but: int | None = None) -> None:
    """Assert that all ranks, but that one, have ended without an error."""
    for rank, one in enumerate(ended):
        assert rank == but or one.returncode == 0, "\n".join(f"[{r}] {e.output}" for r, e in enumerate(ended))
