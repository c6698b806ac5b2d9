"""`collectives bench meeting`: measures the time to form a group of ranks through each rendezvous store.

Invariant: all figures are milliseconds, measured in this run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median

import click
from rich.text import Text

from collectives.bench.commands.options import positive, screen, writable
from collectives.bench.commands.stores import each, store_option
from collectives.bench.document import FORMAT, VERSION, write
from collectives.bench.exits import FAILED
from collectives.bench.meeting import Meeting, measure
from collectives.bench.rank_threads import Place
from collectives.bench.report import Progress


@click.command("meeting")
@click.option("-n", "--ranks", type=click.IntRange(min=1), default=64, show_default=True, metavar="N", help="Threads.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, metavar="N", help="For each store.")
@store_option
@click.option("--timeout", type=float, callback=positive, default=60.0, show_default=True, metavar="SECONDS")
@click.option("--json", metavar="FILE", callback=writable, help="Write every round's times.")
def command(ranks: int, rounds: int, stores: tuple[str, ...], timeout: float, json: str | None) -> None:
    """Measure how long N ranks take to find each other through a store and to form a group.

    The ranks are threads of one process, which start at the same moment. Two times are measured, from the start of the
    first rank to the end of the last:

    \b
      meet   until every rank has read from the store what all ranks wrote
      init   until collectives.init() has returned on every rank; this also
             includes opening connections and a first barrier

    The ranks have a run id and a secret, as under any launcher. To measure Redis, too, set $COLLECTIVES_STORE to
    redis://host.

    The exit code is 3 if the ranks could not form a group.
    """
    console = screen().console()
    console.print(Text(f"# {ranks} ranks as threads of one process, {rounds} rounds; milliseconds", style="dim"))
    heads = "".join(f" {what + ' ' + which:>10}" for what in ("meet", "init") for which in ("median", "min", "max"))
    console.print(Text(f"# {'store':<10}{heads}", style="bold"))
    found: list[Meeting] = []
    progress = Progress(screen().progress)
    failed = False

    def one(where: Place) -> Meeting:
        progress.show(f"{ranks} ranks meet through {where.kind}")
        return measure(where, ranks, rounds, timeout)

    for meeting in each(stores, progress, one):
        if meeting is None:
            failed = True
            continue
        found.append(meeting)
        console.print(Text(f"  {meeting.store:<10}" + _fields(meeting.meet) + _fields(meeting.init)))
        sys.stdout.flush()
    if json is not None:
        reported = {"format": f"{FORMAT} meeting", "version": VERSION}
        write(json, {**reported, "meetings": [asdict(meeting) for meeting in found]})
    sys.exit(FAILED if failed else 0)


def _fields(seconds: Sequence[float]) -> str:
    return "".join(f" {1e3 * value:>10.1f}" for value in (median(seconds), min(seconds), max(seconds)))
