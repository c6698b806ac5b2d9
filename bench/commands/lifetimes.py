"""`collectives bench lifetimes`: makes and closes communicators many times, and looks for resources that remain.

Invariant: the exit code shows whether the count of any resource has grown.
"""

from __future__ import annotations

import sys
from dataclasses import asdict

import click
from rich.text import Text

from collectives.bench.commands.options import positive, screen, writable
from collectives.bench.commands.stores import each, store_option
from collectives.bench.document import FORMAT, VERSION, write
from collectives.bench.exits import FAILED, REFUTED
from collectives.bench.lifetimes import FIRST, GROWTH, Counts, Lifetimes, measure
from collectives.bench.rank_threads import Place
from collectives.bench.report import Progress
from collectives.native.errors import CollectiveError
from collectives.transports import registry

_WIDTH = 11


@click.command("lifetimes")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=1000, show_default=True, metavar="N", help="For each store."
)
@click.option("-n", "--ranks", type=click.IntRange(min=1), default=2, show_default=True, metavar="N", help="Threads.")
@store_option
@click.option("--transport", default="auto", show_default=True, metavar="NAME", help="auto, shm, tcp, ...")
@click.option("--timeout", type=float, callback=positive, default=60.0, show_default=True, metavar="SECONDS")
@click.option("--json", metavar="FILE", callback=writable, help="Write the counts.")
def command(rounds: int, ranks: int, stores: tuple[str, ...], transport: str, timeout: float, json: str | None) -> None:
    """Create and close communicators many times in one process, and compare the resources in use before and after.

    In each round, N threads are the ranks of a new communicator. They run two allreduces, one of them on an array from
    comm.empty, and close the communicator. The command counts file descriptors, threads, mappings of shared memory, and
    keys in the store. It also counts files in the store's directory and in /dev/shm, and bytes of resident memory. A
    warm-up of 100 rounds comes before the first count.

    The exit code is 1 if a result was wrong or a count has grown (resident memory: by more than 4 MiB). It is 3 if the
    ranks could not form a communicator.
    """
    if transport != "auto":
        try:
            registry.transport(transport)
        except (ValueError, CollectiveError) as error:
            raise click.BadParameter(str(error), param_hint="'--transport'") from error
    console = screen().console()
    what = f"{ranks} ranks as threads, transport {transport}, {rounds} rounds of init, allreduce, close after {FIRST}"
    console.print(Text(f"# {what} that do not count", style="dim"))
    heads = "".join(f" {name:>{_WIDTH}}" for name in Counts.__dataclass_fields__)
    console.print(Text(f"# {'store':<8} {'':<6}{heads}", style="bold"))
    found: list[Lifetimes] = []
    progress = Progress(screen().progress)
    failed = False

    def one(where: Place) -> Lifetimes:
        def note(number: int) -> None:
            if number % 10 == 0:
                progress.show(f"{where.kind}: round {number} of {rounds}")

        return measure(where, transport, ranks, rounds, timeout, note)

    for taken in each(stores, progress, one):
        if taken is None:
            failed = True
            continue
        found.append(taken)
        for when, counts in (("before", taken.before), ("after", taken.after)):
            reported = {**asdict(counts), "memory": f"{counts.memory / 2**20:.2f} MiB"}
            console.print(Text(f"  {taken.store:<8} {when:<6}" + "".join(f" {v:>{_WIDTH}}" for v in reported.values())))
        verdict = f"grown: {', '.join(taken.grown)}" if taken.grown else "nothing has grown"
        style = "bold red" if taken.grown or taken.wrong else "green"
        pace = 1e3 * taken.seconds / rounds
        console.print(
            Text(f"# {taken.store}: {verdict}, {taken.wrong} wrong values, {pace:.2f} ms a round", style=style)
        )
        sys.stdout.flush()
    if json is not None:
        head = {"format": f"{FORMAT} lifetimes", "version": VERSION, "allowed": GROWTH}
        write(json, {**head, "lifetimes": [{**asdict(taken), "grown": taken.grown} for taken in found]})
    sys.exit(FAILED if failed else REFUTED if any(taken.grown or taken.wrong for taken in found) else 0)
