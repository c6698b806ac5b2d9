"""`collectives bench meeting`: measures the time to form a group of ranks through each rendezvous store.

Invariant: all figures are measured in this run; times are milliseconds.
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
from collectives.bench.exits import FAILED, REFUTED
from collectives.bench.meeting import Meeting, has_torch, measure
from collectives.bench.rank_threads import Place, usual
from collectives.bench.report import Progress


@click.command("meeting")
@click.option("-n", "--ranks", type=click.IntRange(min=1), default=64, show_default=True, metavar="N", help="Ranks.")
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Processes that share the ranks; each rank is a thread.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, metavar="N", help="For each store.")
@store_option
@click.option("--init/--no-init", "with_init", default=True, show_default=True, help="Measure collectives.init(), too.")
@click.option("--torch", "with_torch", is_flag=True, help="Measure torch's TCPStore and Gloo, too; a process a rank.")
@click.option("--strict", is_flag=True, help="Exit with 1 if a target is missed.")
@click.option("--timeout", type=float, callback=positive, default=60.0, show_default=True, metavar="SECONDS")
@click.option("--json", metavar="FILE", callback=writable, help="Write every round's times.")
def command(
    ranks: int,
    processes: int,
    rounds: int,
    stores: tuple[str, ...],
    with_init: bool,
    with_torch: bool,
    strict: bool,
    timeout: float,
    json: str | None,
) -> None:
    """Measure how long N ranks take to find each other through a store and to form a group.

    The ranks are threads of one or more processes, which start at the same moment. These times are measured, from the
    start of the first rank to the end of the last:

    \b
      meet   until every rank has read and checked the list of all ranks
      init   until collectives.init() has returned on every rank; this also
             includes opening connections and a first barrier
      torch  until torch.distributed has made a process group of Gloo, with
             a TCPStore; only with --torch, which needs a process for each rank

    The times are medians, minima and maxima over the rounds. Each round has one turn of each. After the times come what
    a rank takes until all have met: its memory, its requests to the store and the bytes that it reads from there.

    The ranks have a run id and a secret, as under any launcher. To measure Redis, too, set $COLLECTIVES_STORE to
    redis://host. The store memory is left out if there is more than one process.

    The exit code is 3 if the ranks could not form a group, and 1 with --strict if a target is missed.
    """
    if processes > ranks:
        raise click.BadParameter(f"{ranks} ranks cannot be in {processes} processes", param_hint="'--processes'")
    if with_torch and processes != ranks:
        raise click.BadParameter(f"needs a process for each rank: --processes {ranks}", param_hint="'--torch'")
    if with_torch and not has_torch():
        raise click.BadParameter("torch is not installed", param_hint="'--torch'")
    if processes > 1 and not stores:
        stores = tuple(name for name in usual() if name != "memory")
    console = screen().console()
    where = "one process" if processes == 1 else f"{processes} processes"
    console.print(Text(f"# {ranks} ranks as threads of {where}, {rounds} rounds; milliseconds", style="dim"))
    whats = ["meet", *(["init"] if with_init else []), *(["torch"] if with_torch else [])]
    heads = "".join(f" {what + ' ' + which:>12}" for what in whats for which in ("median", "min", "max"))
    console.print(Text(f"# {'store':<10}{heads}", style="bold"))
    found: list[Meeting] = []
    progress = Progress(screen().progress)
    failed = False

    def one(where: Place) -> Meeting:
        progress.show(f"{ranks} ranks meet through {where.kind}")
        return measure(where, ranks, rounds, timeout, processes, with_init=with_init, with_torch=with_torch)

    for meeting in each(stores, progress, one):
        if meeting is None:
            failed = True
            continue
        found.append(meeting)
        times = [meeting.meet, *filter(None, (meeting.init, meeting.torch))]
        console.print(Text(f"  {meeting.store:<10}" + "".join(map(_fields, times))))
        console.print(
            Text(
                f"#   a rank: {meeting.memory / 1024:.0f} KiB of memory (at most "
                f"{meeting.most_memory / 1024:.0f}), {meeting.requests:g} requests (the leader "
                f"{meeting.most_requests}), {meeting.received / 1024:.1f} KiB read; load {max(meeting.load):.1f}",
                style="dim",
            )
        )
        for what, value, bar in meeting.bars():
            verdict = "" if value <= bar else "  (missed)"
            console.print(Text(f"#   {what}: {value:.3g}, at most {bar:.3g}{verdict}", style="dim"))
        sys.stdout.flush()
    if json is not None:
        reported = {"format": f"{FORMAT} meeting", "version": VERSION}
        write(json, {**reported, "meetings": [_document(meeting) for meeting in found]})
    missed = any(value > bar for meeting in found for _, value, bar in meeting.bars())
    sys.exit(FAILED if failed else REFUTED if strict and missed else 0)


def _document(meeting: Meeting) -> dict[str, object]:
    bars = [{"what": what, "value": value, "bar": bar} for what, value, bar in meeting.bars()]
    return {**asdict(meeting), "bars": bars}


def _fields(seconds: Sequence[float]) -> str:
    return "".join(f" {1e3 * value:>12.1f}" for value in (median(seconds), min(seconds), max(seconds)))
