"""`collectives calibrate`: measures which algorithms are fastest here, and stores them in a table for `init`.

Invariant: the measuring ranks are those of the running job; without a job, they are started on this machine. The
table's file is replaced only by a complete table.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

import collectives
from collectives.bench import sizes
from collectives.bench.commands.options import names, positive, screen, writable
from collectives.bench.exits import FAILED, guarded
from collectives.bench.hosts import memory as machine_memory
from collectives.bench.plan import load
from collectives.bench.report import Progress, Screen
from collectives.bench.start import processes
from collectives.calibration import FULL, Outcome, calibrate, noise
from collectives.commands.child import StartError
from collectives.commands.options import Names
from collectives.core import tables
from collectives.core.tables import Machine
from collectives.native.errors import CollectiveError
from collectives.rendezvous.bootstrap import bootstrap
from collectives.schedule.defaults import DEFAULTS
from collectives.schedule.table import Table
from collectives.schedule.table import text as table_text
from collectives.transports import registry
from collectives.transports.host import HostIdentity

RANKS = 2
_NAME: Final = "collectives calibrate"


@dataclass(frozen=True, slots=True)
class Order:
    """The settings of `collectives calibrate`: what to measure, and the file for the table of the fastest algorithms.

    `output` is this file; None stands for a file in the user's cache folder.
    """

    transport: str | None
    budget: float
    most: int
    collectives: tuple[str, ...]
    output: str | None
    modules: tuple[str, ...]
    tolerant: bool

    @staticmethod
    def from_json(value: dict[str, Any]) -> Order:
        found: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in value.items()}
        return Order(**found)


def _size(ctx: click.Context, param: click.Parameter, value: str) -> int:
    try:
        return sizes.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("calibrate")
@click.argument("collective", nargs=-1, type=Names(FULL.collectives), metavar="[COLLECTIVE]...")
@click.option(
    "-n", "-np", "--ranks", type=click.IntRange(min=2), metavar="N", help=f"Ranks to start here.  [default: {RANKS}]"
)
@click.option("--transport", envvar="COLLECTIVES_TRANSPORT", metavar="NAME", help="auto, shm, tcp, ...")
@click.option(
    "--budget",
    type=float,
    callback=positive,
    default=FULL.seconds,
    show_default=True,
    metavar="SECONDS",
    help="Time for everything.",
)
@click.option(
    "-e", "--maxbytes", callback=_size, default="64M", show_default=True, metavar="SIZE", help="Largest size."
)
@click.option("--output", metavar="FILE", callback=writable, help="Write the table there.  [default: the cache folder]")
@click.option("--import", "modules", multiple=True, callback=names, metavar="MODULES", help="Register your algorithms.")
@click.option("--despite-noise", "tolerant", is_flag=True, help="Keep the table even if the machine is not quiet.")
def command(
    collective: tuple[str, ...],
    ranks: int | None,
    transport: str | None,
    budget: float,
    maxbytes: int,
    output: str | None,
    modules: tuple[str, ...],
    tolerant: bool,
) -> None:
    """Measure which algorithm is fastest for each COLLECTIVE and size. By default, all collectives are measured.

    If you start it by hand, it runs N ranks on this machine. Under a launcher (collectives run, torchrun, mpirun,
    srun), the processes of the launcher are the ranks.

    The result is a table of the fastest algorithms, for groups with the same number of ranks, and of ranks per host.
    From then on, collectives.init() uses it in such groups if their rank 0 runs on this machine. With --output FILE the
    table is written to FILE instead. To use it, set COLLECTIVES_TABLE=FILE or pass init(table=FILE).

    The table is not stored if the measurement was disturbed: other programs or virtual machines used the cores, or
    times differed from round to round. Then the built-in choices of algorithms remain in use, and the exit code is 3.

    \b
      collectives calibrate -n 4
      collectives calibrate -n 4 --transport tcp --budget 120
      collectives calibrate allreduce -n 2 --output my.table
    """
    order = Order(transport, budget, maxbytes, collective, output, modules, tolerant)
    try:
        load(modules, os.getcwd())
        launch = bootstrap()
        if transport not in (None, "auto"):
            registry.transport(transport)
    except (ValueError, CollectiveError) as error:
        raise click.UsageError(str(error)) from error
    if launch.launcher != "none":
        if ranks not in (None, launch.size):
            raise click.UsageError(f"-n {ranks}, but this job ({launch.launcher}) has {launch.size} ranks")
        if launch.size < 2:
            raise click.UsageError("a job of one rank has nothing to choose")
        sys.exit(guarded(_NAME, partial(run, order, screen())))
    size = ranks or RANKS
    needed, free = 4 * size * maxbytes, machine_memory("MemAvailable")
    if free and needed > free:
        what = f"{needed / 2**30:.1f} GiB for their arrays, and {free / 2**30:.1f} are available"
        raise click.UsageError(f"{size} ranks need {what}: give a smaller size with -e")
    if not tolerant and (reasons := noise.beforehand(size)):
        click.echo(_not_quiet(reasons), err=True)
        sys.exit(FAILED)
    reported = {"order": asdict(order), "screen": asdict(screen()), "cwd": os.getcwd()}
    try:
        sys.exit(processes("collectives.bench.commands.calibrate", reported, size))
    except (StartError, OSError) as error:
        raise click.ClickException(str(error)) from error


def run(order: Order, seen: Screen) -> int:
    """Measure all algorithms as one rank of a job. Rank 0 stores the table of the fastest algorithms.

    `order` says what to measure, `seen` how to print. Return the exit code. Raises: CollectiveError, ValueError,
    OSError.
    """
    effort = FULL.with_(order.budget, order.most, order.collectives)
    with collectives.init(transport=order.transport, calibrate="off") as comm:
        reported = comm._everyones(json.dumps(comm._linked.place.to_json()).encode())
        machine = Machine.of([HostIdentity.from_json(json.loads(text)) for text in reported], collectives.__version__)
        situation = comm._linked.situation
        progress = Progress(seen.progress and comm.rank == 0)

        def say(what: str, share: float) -> None:
            progress.show(f"{min(share, 1.0):4.0%}  {what}")

        try:
            found = calibrate(comm, DEFAULTS, effort, say, tolerant=order.tolerant)
        finally:
            progress.clear()
        if found.noise and comm.rank == 0:
            click.echo(_not_quiet(found.noise, order.tolerant), err=True)
        if found.noise and not order.tolerant:
            comm.barrier()
            return FAILED
        if comm.rank == 0:
            how = f"full, in {found.seconds:.1f} s, by collectives calibrate"
            table = tables.described(found.table, machine, situation, how, found.facts)
            path = Path(order.output) if order.output else tables.path_for(machine, situation)
            if path is None:
                raise OSError("there is no home directory to keep the table in: give --output FILE")
            tables.save(path, table)
            _report(table, found, path)
        comm.barrier()
    return 0


def _not_quiet(reasons: Sequence[str], kept: bool = False) -> str:
    if kept:
        return f"{_NAME}: this machine is not quiet: {'; '.join(reasons)}. The table is kept, as you asked"
    what = "The built-in choices stay; nothing was written. Calibrate when nothing else runs"
    return f"{_NAME}: this machine is not quiet: {'; '.join(reasons)}. {what} (or --despite-noise)"


def _report(table: Table, found: Outcome, path: Path) -> None:
    if found.sockets is not None:
        click.echo(f"# tcp: {found.sockets} socket{'s' if found.sockets > 1 else ''} a link")
    if found.rendezvous is not None:
        click.echo(f"# verbs: rendezvous protocol from {found.rendezvous} bytes on")
    for kind, link in found.links.items():
        speed = f"{1 / link.beta / 1e9:.2f} GB/s, reduces {1 / link.gamma / 1e9:.2f} GB/s"
        click.echo(f"# {kind}: a message takes {link.alpha * 1e6:.2f} us, then {speed}")
    click.echo(table_text(Table(table.rows)), nl=False)
    click.echo(f"# {table.facts['how']}: {path}")


def main() -> None:
    """The main function of a rank's process. `collectives calibrate` starts one process for each rank."""
    reported = json.loads(sys.argv[1])
    order = Order.from_json(reported["order"])
    load(order.modules, reported["cwd"])
    sys.exit(guarded(_NAME, partial(run, order, Screen(**reported["screen"]))))
