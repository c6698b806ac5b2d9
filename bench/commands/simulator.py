"""`collectives bench simulator`: fits the simulator's costs (latencies, rates) to this machine, and checks them.

Invariant: costs are fitted at some sizes and checked at other sizes, all measured within one run. The file of costs is
replaced only if all costs have been found.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import click
import numpy as np
from rich.text import Text

from collectives.bench.commands.options import numbers, positive, say, screen, size, writable
from collectives.bench.document import FORMAT, VERSION, write
from collectives.bench.exits import FAILED
from collectives.bench.order import Order
from collectives.bench.report import Progress
from collectives.bench.simulator import fastest, measure
from collectives.calibration import noise
from collectives.calibration.costs import Measured, errors, fit, ordered, starts
from collectives.commands.child import StartError
from collectives.commands.machine import this_machine
from collectives.commands.options import Names
from collectives.core import tables
from collectives.native.errors import CollectiveError
from collectives.transports import registry

CHECKED: Final = ("allreduce", "reduce_scatter", "allgather", "broadcast")
_BETWEEN: Final = 8  # factor between the sizes at which costs are fitted
_TIMES: Final = 2  # how often all numbers of ranks are measured, one after another
_WITHIN: Final = 0.2  # the summary counts predictions with at most this relative error


def split(most: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return two tuples of sizes in bytes, up to `most`: for fitting the simulator's parameters, and for checking them.

    The sizes alternate: between two sizes of the first tuple there is one of the second.
    """
    found = [8]
    while found[-1] * _BETWEEN <= max(most, 64):
        found.append(found[-1] * _BETWEEN)
    middle = [round(a * _BETWEEN**0.5 / 4) * 4 for a in found[:-1]]
    return tuple(found), tuple(middle)


@click.command("simulator")
@click.argument("collective", nargs=-1, type=Names(CHECKED), metavar="[COLLECTIVE]...")
@click.option("-n", "--ranks", "counts", default="2,4,8", callback=numbers, metavar="N,...", show_default=True)
@click.option("-e", "--maxbytes", callback=size, default="16M", show_default=True, metavar="SIZE", help="Largest size.")
@click.option(
    "--transport", default="shm", show_default=True, metavar="NAME", help="shm, tcp or verbs, within this host."
)
@click.option(
    "--budget",
    type=float,
    callback=positive,
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="For each number of ranks and each collective.",
)
@click.option("--kept", is_flag=True, help="Only check the costs that were found before.")
@click.option("--output", metavar="FILE", callback=writable, help="Write the costs there.  [default: the cache folder]")
@click.option("--despite-noise", "tolerant", is_flag=True, help="Keep the costs even if the machine is not quiet.")
@click.option("--json", "document", metavar="FILE", callback=writable, help="Write all times, predictions and costs.")
def command(
    collective: tuple[str, ...],
    counts: tuple[int, ...],
    maxbytes: int,
    transport: str,
    budget: float,
    kept: bool,
    output: str | None,
    tolerant: bool,
    document: str | None,
) -> None:
    """Measure collectives on this machine, and fit the simulator's costs (latencies and bandwidths) to the times.

    The command measures every algorithm of each COLLECTIVE; without COLLECTIVE, of allreduce. It finds the costs with
    which `collectives simulate` predicts the measured times best, and prints how far the predictions are off.

    Half of the sizes are used to fit the costs, and the sizes between them to check the predictions. The costs are
    stored on this machine for `collectives simulate --here shm` (or tcp, or verbs). With --kept, no costs are fitted.
    Then the stored costs of an earlier run are checked.

    \b
      collectives bench simulator
      collectives bench simulator --transport tcp -e 1M
      collectives bench simulator allreduce broadcast --kept -n 3,6
    """
    if kept and output is not None:
        raise click.UsageError("--kept finds no costs that --output could keep")
    machine = this_machine()
    to_fit, to_check = split(maxbytes)
    progress = Progress(screen().progress)
    try:
        registry.transport(transport)
        costs = tables.load_costs(machine, transport) if kept else None
        if kept and costs is None:
            raise click.UsageError(f"no costs for {transport} have been found on this machine")
        asked = tuple(dict.fromkeys(collective)) or CHECKED[:1]
        at = to_check if kept else tuple(sorted((*to_fit, *to_check)))
        order = Order(asked, at, transport, budget * len(asked) / _TIMES)
        runs: list[list[Measured]] = []
        reasons: dict[str, None] = {}
        for count in counts * _TIMES:
            progress.show(f"{count} ranks measure {', '.join(asked)}")
            watch = noise.Watch(children=True)
            runs.append(measure(order, count))
            reasons.update(dict.fromkeys(noise.judge([replace(watch.reading(), preempted=0)], count)))
        if reasons and costs is None:
            progress.clear()
            say(f"this machine is not quiet: {'; '.join(reasons)}")
            if not tolerant:
                raise RuntimeError("no costs were kept: measure when nothing else runs (or --despite-noise)")
        measured = fastest(runs)
        if costs is None:
            chosen = [m for m in measured if m.case.nbytes in to_fit]
            costs = fit(chosen, starts(transport), lambda share: progress.show(f"{share:4.0%}  finding costs"))
            path = Path(output) if output else tables.costs_path(machine, transport)
            if path is None:
                raise OSError("there is no home directory to keep the costs in: give --output FILE")
            how = f"collectives bench simulator {' '.join(asked)} -n {','.join(map(str, counts))} -e {maxbytes}"
            tables.save_costs(path, costs, machine, how)
            click.echo(f"# costs found at {_all(to_fit)} bytes: {path}")
            click.echo(costs.to_text(), nl=False)
    except (StartError, CollectiveError, ValueError, OSError, RuntimeError) as error:
        progress.clear()
        click.echo(f"collectives bench simulator: {error}", err=True)
        sys.exit(FAILED)
    progress.clear()
    checked = sorted((m for m in measured if m.case.nbytes in to_check), key=lambda m: m.case)
    off = errors(checked, costs).tolist()
    click.echo(f"# checked at {_all(to_check)} bytes, over {transport}: |predicted / measured - 1|, the median")
    console = screen().console()
    for line in report(checked, off, counts):
        console.print(Text(line))
    right, pairs = ordered(checked, costs)
    click.echo(f"{pairs} pairs of algorithms differ by 20% or more, {right} of them in the predicted order")
    if document is not None:
        reported = [
            {**m.case._asdict(), "measured": m.seconds, "error": error} for m, error in zip(checked, off, strict=True)
        ]
        others = [{**m.case._asdict(), "measured": m.seconds} for m in measured if m.case.nbytes not in to_check]
        head = {"format": f"{FORMAT} simulator", "version": VERSION, "transport": transport, "costs": asdict(costs)}
        write(document, {**head, "checked": reported, "fitted": others})


def report(checked: Sequence[Measured], off: Sequence[float], counts: Sequence[int]) -> Iterator[str]:
    """Format a table of the median errors of predicted times, with a line for each algorithm.

    There is a column for each of `counts`, the numbers of ranks. `checked` are the measured times. `off` has the
    relative error of the prediction for each measured time.
    """

    def middle(chosen: Sequence[float]) -> str:
        return f"{np.median(np.abs(chosen)):9.0%}" if chosen else f"{'-':>9}"

    pairs = list(zip(checked, off, strict=True))
    names = list(dict.fromkeys((m.case.collective, m.case.algorithm) for m in checked))
    width = max(len(f"{collective} {algorithm}") for collective, algorithm in names)
    yield f"{'':{width}}" + "".join(f"{f'{count} ranks':>9}" for count in counts) + f"{'all':>9}"
    for name in names:
        mine = [(m.case.ranks, error) for m, error in pairs if (m.case.collective, m.case.algorithm) == name]
        columns = [middle([error for ranks, error in mine if ranks == count]) for count in counts]
        yield f"{' '.join(name):{width}}{''.join(columns)}{middle([error for _, error in mine])}"
    columns = [middle([error for m, error in pairs if m.case.ranks == count]) for count in counts]
    yield f"{'all':{width}}{''.join(columns)}{middle(list(off))}"
    near = sum(abs(error) <= _WITHIN for error in off) / len(off)
    yield f"{len(off)} predictions, {near:.0%} of them within {_WITHIN:.0%}"


def _all(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
