"""`collectives bench cores`: compares allreduce with MPI libraries when every rank has cores of its own.

Invariant: nothing is measured before the MPI libraries have been installed.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.text import Text

from collectives.bench import sizes
from collectives.bench.commands.options import addresses_option, numbers, positive, say, screen, writable
from collectives.bench.cores import AGAINST, SLOWEST, Comparison, Spread, comparison, lines, spreads
from collectives.bench.document import FORMAT, VERSION, write
from collectives.bench.exits import FAILED, REFUTED
from collectives.bench.peers.environment import CannotInstall, python_for
from collectives.bench.plan import Plan
from collectives.bench.report import ABSENT
from collectives.bench.runs import Runs, cores
from collectives.bench.standing import FAIL, PASS, Session
from collectives.commands.child import StartError

BUDGET: Final = 200.0
_STYLES: Final = {True: "green", False: "bold red", None: "dim"}
_WORDS: Final = {True: PASS, False: FAIL, None: ABSENT}


@click.command("cores")
@click.option(
    "-n",
    "--ranks",
    callback=numbers,
    default="2,4,8,16",
    show_default=True,
    metavar="N,…",
    help="Numbers of ranks to compare; the largest is launched many times.",
)
@click.option(
    "--budget",
    type=float,
    callback=positive,
    default=BUDGET,
    show_default=True,
    metavar="SECONDS",
    help="Time for the comparison.",
)
@click.option(
    "--rounds", type=click.IntRange(min=1), default=3, show_default=True, metavar="N", help="Turns in each launch."
)
@click.option(
    "--launches",
    type=click.IntRange(min=2),
    default=20,
    show_default=True,
    metavar="N",
    help="How often the largest number of ranks is launched, bound to cores and not.",
)
@addresses_option
@click.option("--json", metavar="FILE", callback=writable, help="Write everything, raw samples included.")
@click.option("--strict", is_flag=True, help="Exit with code 1 also if a target is missed.")
def command(
    ranks: tuple[int, ...], budget: float, rounds: int, launches: int, addresses: str, json: str | None, strict: bool
) -> None:
    """Compare allreduce with Open MPI and Intel MPI, for ranks that each have a core of their own.

    The first part measures arrays of 8 bytes to 64 MiB, NumPy's and those of comm.empty. It prints the ratio of this
    library's time to that of the faster MPI library: at the worst size, and the median over all sizes. The second part
    launches the largest number of ranks many times, and compares the median times of the launches. With 16 cores,
    everything takes about five minutes.

    \b
      collectives bench cores --json cores.json
      collectives bench cores -n 2 --budget 20 --launches 5

    The exit code is 1 if any result of this library was wrong, 3 if a run failed.
    """
    if ranks[-1] > cores():
        raise click.BadParameter(
            f"{ranks[-1]} ranks need as many cores, and there are {cores()}", param_hint="'-n' / '--ranks'"
        )
    here = screen()
    try:
        pythons = {name: python_for(name, say, here.progress) for name in AGAINST}
    except CannotInstall as error:
        raise click.ClickException(str(error)) from error
    wanted = lines(ranks)
    started = datetime.now(timezone.utc).astimezone()
    with tempfile.TemporaryDirectory(prefix="collectives-bench-") as folder:
        runs = Runs(replace(here, table=False), Path(folder), addresses)
        session = Session(wanted, budget, 1, rounds, pythons, runs.measure, say)

        def launch(plan: Plan, bound: bool) -> dict[str, Any] | None:
            return runs.measure(plan, ranks[-1], bound)

        try:
            documents = session.documents()
            say(f"{launches} launches of {ranks[-1]} ranks, bound to cores and not")
            launched, failures = spreads(launch, launches, (True, False))
        except (StartError, OSError) as error:
            raise click.ClickException(str(error)) from error
    compared = [comparison(line, documents.get(line.setting, [])) for line in wanted]
    _print(here.console(), compared, launched)
    if json is not None:
        reported = {"format": f"{FORMAT} cores", "version": VERSION, "started": started.isoformat()}
        everything = [{"setting": asdict(s), **d} for s, its_own in documents.items() for d in its_own]
        table = [{**asdict(found), "passed": found.passed} for found in compared]
        write(json, {**reported, "comparisons": table, "launches": [asdict(s) for s in launched], "runs": everything})
    failed = failures > 0 or len(documents) < len(wanted)
    missed = any(found.passed is False for found in compared) or not all(spread.passed for spread in launched)
    sys.exit(FAILED if failed else REFUTED if runs.wrong or (strict and missed) else 0)


def _print(console: Console, compared: list[Comparison], launched: list[Spread]) -> None:
    def show(text: str, style: str = "") -> None:
        console.print(Text(text, style=style))

    show(f"# {cores()} cores; our time over that of the faster of {' and '.join(AGAINST)}", "dim")
    show(f"# {'ranks':>5} {'arrays':<8} {'median':>7} {'target':>7} {'worst':>7} {'target':>7} {'at':>6}", "bold")
    for found in compared:
        line = Text(f"  {found.ranks:>5} {found.buffers:<8}")
        if found.worst is not None:
            line.append(f" {found.median:7.2f} {_optional(found.target.median)}")
            line.append(f" {found.worst.ratio:7.2f} {found.target.worst:7.2f} {sizes.text(found.worst.nbytes):>6} ")
        line.append(f" {_WORDS[found.passed]}", _STYLES[found.passed])
        console.print(line)
    show(f"# medians of {len(launched[0].medians) if launched else 0} launches, in microseconds", "dim")
    show(f"# {'ranks':>7} {'size':>6} {'fastest':>9} {'slowest':>9} {'ratio':>6} {'target':>7}", "bold")
    for spread in launched:
        line = Text(f"  {'bound' if spread.bound else 'unbound':>7} {sizes.text(spread.nbytes):>6}")
        line.append(f" {1e6 * min(spread.medians):9.1f} {1e6 * max(spread.medians):9.1f}")
        line.append(f" {spread.ratio:6.2f} {SLOWEST:7.2f} ")
        line.append(f" {_WORDS[spread.passed]}", _STYLES[spread.passed])
        console.print(line)


def _optional(target: float | None) -> str:
    return f"{ABSENT:>7}" if target is None else f"{target:7.2f}"
