"""`collectives bench choice`: compares the algorithm that the library chooses with every other one, and with a target.

Invariant: all errors in the command line are reported before a process is started.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click
from rich.text import Text

from collectives.bench import sizes
from collectives.bench.choice import AUTO, BAR, AlgorithmTimes, measure
from collectives.bench.commands.options import launches_option, numbers, positive, screen, size, writable
from collectives.bench.document import FORMAT, VERSION, write
from collectives.bench.exits import FAILED, REFUTED
from collectives.bench.order import Order
from collectives.bench.report import Progress
from collectives.commands.child import StartError
from collectives.commands.options import Names
from collectives.native.errors import CollectiveError
from collectives.schedule.conditions import COLLECTIVES
from collectives.transports import registry


@click.command("choice")
@click.argument("collective", nargs=-1, type=Names(COLLECTIVES), metavar="[COLLECTIVE]...")
@click.option("-n", "--ranks", "counts", default="2,4,8", callback=numbers, metavar="N,...", show_default=True)
@click.option("-b", "--minbytes", callback=size, default="8", show_default=True, metavar="SIZE", help="Smallest size.")
@click.option("-e", "--maxbytes", callback=size, default="64M", show_default=True, metavar="SIZE", help="Largest size.")
@click.option(
    "-f",
    "--stepfactor",
    type=click.IntRange(min=2),
    default=4,
    show_default=True,
    metavar="FACTOR",
    help="Factor between sizes.",
)
@click.option("--transport", default="auto", show_default=True, metavar="NAME", help="auto, shm, tcp, ...")
@click.option(
    "--budget", type=float, callback=positive, default=2.0, show_default=True, metavar="SECONDS", help="For each size."
)
@launches_option
@click.option("--json", "document", metavar="FILE", callback=writable, help="Write the times of every round.")
@click.option("--strict", is_flag=True, help="Exit with code 1 if the target is missed.")
def command(
    collective: tuple[str, ...],
    counts: tuple[int, ...],
    minbytes: int,
    maxbytes: int,
    stepfactor: int,
    transport: str,
    budget: float,
    launches: int,
    document: str | None,
    strict: bool,
) -> None:
    """Compare the algorithm that the library chooses with every other algorithm, for each COLLECTIVE.

    Without COLLECTIVE, allreduce is measured. All algorithms take turns. The ranks run on this machine and are started
    several times. The command prints how much longer the chosen algorithm took than the fastest.

    The library chooses as in any program. So it uses tables that `collectives calibrate` has stored on this machine.

    \b
      collectives bench choice
      collectives bench choice allgather broadcast -n 4 --transport tcp
    """
    try:
        at = tuple(sizes.series(minbytes, maxbytes, stepfactor, None))
        if transport != "auto":
            registry.transport(transport)
    except (ValueError, CollectiveError) as error:
        raise click.UsageError(str(error)) from error
    progress, found = Progress(screen().progress), list[AlgorithmTimes]()
    try:
        order = Order(tuple(dict.fromkeys(collective)) or ("allreduce",), at, transport, budget)
        for count in counts:
            progress.show(f"{count} ranks measure {', '.join(order.collectives)}")
            found += measure(order, count, launches)
    except (StartError, CollectiveError, ValueError, OSError, RuntimeError) as error:
        progress.clear()
        click.echo(f"collectives bench choice: {error}", err=True)
        sys.exit(FAILED)
    progress.clear()
    console = screen().console()
    for line in report(found):
        console.print(Text(line))
    if document is not None:
        head = {"format": f"{FORMAT} choice", "version": VERSION, "transport": transport, "bar": BAR}
        write(document, {**head, "results": [{**asdict(result), "ratio": result.ratio} for result in found]})
    if strict and any(result.ratio > BAR for result in found):
        sys.exit(REFUTED)


def report(found: Sequence[AlgorithmTimes]) -> Iterator[str]:
    """Return the results `found` as text: a line for each collective and size, and a summary with the largest ratio.

    A ratio is the time of the automatically selected algorithm divided by the time of the fastest one.
    """
    width = max(len(name) for result in found for name in (result.chosen, result.best, "algorithm"))
    yield "time: median over the rounds, of the slowest rank; ratio: to the best single algorithm's, within each round"
    head = f"{'collective':16}{'ranks':>5}{'bytes':>8}  {'choice':{width}}{'us':>10}  {'best':{width}}"
    yield f"{head}{'us':>10}{'ratio':>7}"
    for result in found:
        best = result.chosen if result.best == AUTO else result.best
        mine, theirs = (result.median(name) * 1e6 for name in (AUTO, result.best))
        what = f"{result.collective:16}{result.ranks:5}{sizes.text(result.nbytes):>8}"
        miss = f"  over {BAR}" if result.ratio > BAR else ""
        yield f"{what}  {result.chosen:{width}}{mine:10.2f}  {best:{width}}{theirs:10.2f}{result.ratio:7.2f}{miss}"
    over = sum(result.ratio > BAR for result in found)
    yield f"{len(found)} choices: at most {max(result.ratio for result in found):.2f} times the best, {over} over {BAR}"
