"""`collectives bench standing`: compares the library with other systems, and prints which targets it meets.

Invariant: nothing is measured before all other systems (MPI libraries, Gloo) have been installed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import click
from rich.text import Text

from collectives.bench import sizes
from collectives.bench.bars import BANDS, LINES, Line
from collectives.bench.commands.options import addresses_option, launches_option, names, positive, say, screen, writable
from collectives.bench.document import FORMAT, VERSION, write
from collectives.bench.exits import FAILED, REFUTED
from collectives.bench.hosts import busy
from collectives.bench.peers.environment import CannotInstall, python_for
from collectives.bench.report import ABSENT, Screen
from collectives.bench.runs import Runs, cores
from collectives.bench.standing import FAIL, PASS, Cell, Session, cells
from collectives.commands.child import StartError

BUDGET: Final = 600.0
BUSY: Final = 0.1  # cores that other programs keep busy; if they use more, there is a warning
_STYLES: Final = {PASS: "green", FAIL: "bold red", ABSENT: "dim"}


@click.command("standing")
@click.option("--budget", type=float, callback=positive, metavar="SECONDS", help="Time for everything.  [default: 600]")
@launches_option
@click.option(
    "--rounds", type=click.IntRange(min=1), default=3, show_default=True, metavar="N", help="Turns in each launch."
)
@click.option("-n", "--ranks", multiple=True, type=int, metavar="N", help="Only lines with so many ranks.")
@click.option("--transport", multiple=True, callback=names, metavar="NAMES", help="Only lines for shm, or tcp.")
@click.option("--collective", multiple=True, callback=names, metavar="NAMES", help="Only lines for these.")
@click.option(
    "--buffers", type=click.Choice(["plain", "shared"]), help="Only lines for ordinary arrays, or for comm.empty's."
)
@click.option("--renew", is_flag=True, help="Every rank writes its input before each call, outside the timed part.")
@addresses_option
@click.option("--json", metavar="FILE", callback=writable, help="Write everything, raw samples included.")
@click.option("--strict", is_flag=True, help="Exit with code 1 also if a target is missed.")
def command(
    budget: float | None,
    launches: int,
    rounds: int,
    ranks: tuple[int, ...],
    transport: tuple[str, ...],
    collective: tuple[str, ...],
    buffers: str | None,
    renew: bool,
    addresses: str,
    json: str | None,
    strict: bool,
) -> None:
    """Compare this library with Open MPI, MPICH, Intel MPI and Gloo, and print which targets it meets.

    All libraries sum float32 arrays, take turns, and are started several times. The output is a table with one column
    for each range of message sizes. A cell has two ratios of this library's time to that of the fastest other library:
    at the worst size of the range, and the median over its sizes. "pass" means that the ratio at every size is at most
    the target.

    Rounds in which the machine was faster or slower than in most rounds do not count. "(row)" marks short calls without
    a barrier between them. The whole table takes about ten minutes.

    \b
      collectives bench standing --json standing.json
      collectives bench standing --transport tcp -n 2 --budget 60

    The exit code is 1 if any result of this library was wrong, 3 if a run failed.
    """
    lines = tuple(
        line
        for line in LINES
        if (not ranks or line.ranks in ranks)
        and (not transport or line.transport in transport)
        and (not collective or line.collective in collective)
        and buffers in (None, line.buffers)
    )
    if not lines:
        raise click.UsageError("no line of the table is for that; without options there are all")
    here = screen()
    wanted = dict.fromkeys(name for line in lines for name in line.against)
    try:
        pythons = {name: python_for(name, say, here.progress) for name in wanted}
    except CannotInstall as error:
        raise click.ClickException(str(error)) from error
    if (others := busy(0.5)) > BUSY:
        say(f"other processes keep {others:.1f} cores busy: figures for several ranks will say more about them")
    share = len({line.setting for line in lines}) / len({line.setting for line in LINES})
    started = datetime.now(timezone.utc).astimezone()
    with tempfile.TemporaryDirectory(prefix="collectives-bench-") as folder:
        runs = Runs(replace(here, table=False), Path(folder), addresses)
        session = Session(lines, budget or BUDGET * share, launches, rounds, pythons, runs.measure, say, renew)
        try:
            documents = session.documents()
        except (StartError, OSError) as error:
            raise click.ClickException(str(error)) from error
    found = [cells(line, documents[line.setting]) for line in lines if line.setting in documents]
    everything = [(setting, document) for setting, its_own in documents.items() for document in its_own]
    _print(found, [document for _, document in everything], here)
    if json is not None:
        reported = {"format": f"{FORMAT} standing", "version": VERSION, "started": started.isoformat()}
        table = [{**asdict(cell), "verdict": cell.verdict} for row in found for cell in row]
        runs_told = [{"setting": asdict(setting), **document} for setting, document in everything]
        write(json, {**reported, "cells": table, "runs": runs_told})
    missed = any(cell.verdict == FAIL for row in found for cell in row)
    failed = len(everything) < launches * len({line.setting for line in lines})
    sys.exit(FAILED if failed else REFUTED if runs.wrong or (strict and missed) else 0)


def _print(rows: Sequence[Sequence[Cell]], documents: Sequence[dict[str, Any]], here: Screen) -> None:
    console = here.console()

    def show(text: str, style: str = "") -> None:
        console.print(Text(text, style=style))

    for document in documents[:1]:
        facts = document["group"]["ranks"][0]
        show(f"# pycollectives {facts['pycollectives']}, {facts['processor']}, {cores()} cores", "dim")
    peers = {name: versions for document in documents for name, versions in document["peers"].items()}
    for name, versions in peers.items():
        show(f"# {name}: {', '.join(f'{package} {version}' for package, version in versions.items())}", "dim")
    judged = [size for row in rows for cell in row for size in cell.sizes]
    aside, rounds = sum(size.set_aside for size in judged), sum(size.rounds for size in judged)
    show(f"# rounds set aside, in another mode than their neighbours: {aside} of {rounds}", "dim")
    show("#")
    heads = [f"{sizes.text(b.first)} to {sizes.text(b.last)}" for b in BANDS]
    show("# our time over the best of the others; worst (its size), median over sizes, the bar of the worst", "bold")
    show(f"# {'':<48}" + "".join(f" {head:^35}" for head in heads), "bold")
    titles = f"{'worst':>6} {'at':>5} {'median':>6} {'bar':>5} {'':>4}  "
    show(f"# {'where':<10} {'ranks':>5} {'collective':<15} {'against':<15}" + f" {titles:>35}" * len(heads), "bold")
    for row in rows:
        line = _line(row[0].line)
        for cell in row:
            if cell.sizes:
                worst = cell.worst
                figures = f"{worst.ratio:6.2f} {sizes.text(worst.nbytes):>5} {cell.median:6.2f} {worst.bar:5.2f}"
            else:
                figures = " ".join(f"{ABSENT:>{width}}" for width in (6, 5, 6, 5))
            line.append(f" {figures:>28} ").append(f"{cell.verdict:>4}", _STYLES[cell.verdict]).append("  ")
        line.rstrip()
        console.print(line)
        sys.stdout.flush()


def _line(line: Line) -> Text:
    against = "best-MPI" if len(line.against) > 1 else line.against[0]
    where = f"{line.transport}/{line.buffers}"
    what = line.collective + (" (row)" if line.row > 1 else "")
    return Text(f"  {where:<10} {line.ranks:>5} {what:<15} {against:<15}")
