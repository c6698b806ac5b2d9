"""The library's memory, measured in separate processes.

Invariant: a figure is resident memory as the kernel counts it for the process, shared memory included, so memory that
several ranks map counts for each of them; each figure is printed beside its target (bar).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from rich.text import Text

from collectives.bench import sizes
from collectives.bench.document import FORMAT, VERSION, write
from collectives.bench.exits import FAILED, REFUTED
from collectives.bench.plan import Plan
from collectives.bench.report import Screen
from collectives.bench.start import processes

MIB: Final = 1 << 20
SIZE: Final = 1 << 30  # bytes of the array, by default
RANKS: Final = 4
LINKED: Final = 16  # ranks of the group in which all links are opened


@dataclass(frozen=True, slots=True)
class Figure:
    """The result of a measurement of memory: how many bytes each rank's process used.

    `what` says what was measured, `how` the method. `ranks` has the bytes by rank, `value` is the largest of these
    numbers. `bar` is the target, the largest accepted value. `wrong` is the number of wrong elements in the results of
    collectives.
    """

    what: str
    value: int
    bar: int
    how: str
    ranks: tuple[int, ...]
    wrong: int = 0


@dataclass(frozen=True, slots=True)
class Probe:
    """A measurement of memory that the benchmark can make, in new processes, one for each of `ranks` ranks.

    `name` is the function in `collectives.bench.probes` that measures. `what` says what is measured, `how` the method.
    `bar` is the target, the largest accepted value in bytes.
    """

    name: str
    what: str
    ranks: int
    bar: int
    how: str
    options: Mapping[str, Any]
    environment: Mapping[str, str]


def probes(plan: Plan, ranks: int) -> list[Probe]:
    """Return the measurements of memory to make.

    They measure an allreduce, a communicator, a connection between two ranks, and a process whose threads are ranks.
    `plan` has the sizes and options of the allreduces, which run on `ranks` ranks.
    """
    common = {"timeout": plan.timeout}
    segment = {"COLLECTIVES_SEGMENT": str(plan.segment)} if plan.segment else {}
    links = {**segment, **({"COLLECTIVES_TRANSPORT": plan.transport} if plan.transport else {})}
    peak = "VmHWM (reset by clear_refs) after the call minus VmRSS before it"
    found = [
        Probe(
            "allreduce",
            f"allreduce {sizes.text(size)} in place, {ranks} ranks: rise of a rank's peak",
            ranks,
            96 * MIB,
            f"{peak}; the array is {plan.buffers} memory, written before",
            {**common, "nbytes": size, "buffers": plan.buffers, "algorithm": plan.algorithm},
            links,
        )
        for size in plan.sizes
    ]
    return [
        *found,
        Probe(
            "communicator",
            "communicator of 8 ranks: cost for a rank",
            8,
            16 * MIB,
            "VmHWM (reset) after init, alltoall (opens every link) and allreduce of 1 MiB, minus VmRSS before init",
            common,
            links,
        ),
        Probe(
            "link",
            "idle tcp link: cost for a rank",
            LINKED,
            256 * 1024,
            f"VmRSS after an alltoall opened the rest of {LINKED - 1} links minus VmRSS before, by links opened",
            common,
            {"COLLECTIVES_TRANSPORT": "tcp", **segment},
        ),
        Probe(
            "threads",
            "64 ranks as threads: the whole process",
            1,
            1024 * MIB,
            "VmHWM of the process, Python and NumPy included, after alltoall and allreduce among all 64",
            {**common, "ranks": 64},
            segment,
        ),
    ]


def report(plan: Plan, ranks: int, screen: Screen) -> int:
    """Make all measurements of memory and print them. Return the exit code of the command.

    `plan` has the options, `ranks` the number of ranks, and `screen` says how to print. The code is 3 if a measurement
    failed. Otherwise it is 1 if a result was wrong, else 0.
    """
    console = screen.console()
    started = datetime.now(timezone.utc).astimezone()
    console.print(Text(f"# {'figure':>12} {'bar':>12}  {'':4}  what", style="bold"))
    figures, failed = [], False
    for probe in probes(plan, ranks):
        figure = measure(probe)
        if figure is None:
            failed = True
            console.print(Text(f"  {'N/A':>12} {size_text(probe.bar):>12}  N/A   {probe.what}", style="red"))
            continue
        figures.append(figure)
        verdict, style = ("ok", "green") if figure.value <= figure.bar else ("OVER", "bold red")
        line = Text(f"  {size_text(figure.value):>12} {size_text(figure.bar):>12}  ")
        line.append(f"{verdict:4}", style).append(f"  {figure.what}")
        console.print(line)
        console.print(Text(f"#   {figure.how}" + f"; {figure.wrong} wrong" * bool(figure.wrong), style="dim"))
        sys.stdout.flush()
    if plan.json is not None:
        reported = {"format": FORMAT, "version": VERSION, "complete": not failed, "started": started.isoformat()}
        write(plan.json, {**reported, "arguments": asdict(plan), "results": [], "memory": [asdict(f) for f in figures]})
    return FAILED if failed else REFUTED if any(f.wrong for f in figures) else 0


def measure(probe: Probe) -> Figure | None:
    """Measure how much memory is used, as `probe` describes, in new processes, one for each rank; return the result.

    Return None if a process failed. The process has then printed the error.
    """
    with tempfile.TemporaryDirectory(prefix="collectives-bench-") as folder:
        result = Path(folder, "result.json")
        reported = {"probe": probe.name, "options": dict(probe.options), "result": str(result)}
        environment = {"COLLECTIVES_CALIBRATE": "off", **probe.environment}  # calibrating takes memory
        if processes("collectives.bench.probes", reported, probe.ranks, environment=environment) or not result.exists():
            return None
        found = json.loads(result.read_text())
    return Figure(probe.what, max(found["ranks"]), probe.bar, probe.how, tuple(found["ranks"]), found["wrong"])


def size_text(size: int) -> str:
    return f"{size / MIB:.1f} MiB" if size >= MIB else f"{size / 1024:.1f} KiB"
