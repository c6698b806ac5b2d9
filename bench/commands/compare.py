"""`collectives bench compare`: finds figures that became slower between two result files of the benchmark.

Invariant: the exit code shows whether any figure has become slower; a difference that may be noise does not change the
exit code.
"""

from __future__ import annotations

import math
import sys

import click
from rich.text import Text

from collectives.bench.commands.options import screen
from collectives.bench.compare import FASTER, MODE, SAME, SLOWER, Comparison, NotComparable, compare, read
from collectives.bench.exits import REFUTED
from collectives.bench.report import microseconds

_STYLES = {SLOWER: "bold red", FASTER: "green", SAME: "dim", MODE: "yellow"}


@click.command("compare")
@click.argument("first", type=click.Path(exists=True, dir_okay=False))
@click.argument("second", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--threshold",
    type=click.FloatRange(min=0),
    default=0.1,
    show_default=True,
    metavar="FRACTION",
    help="By how much a time may rise.",
)
@click.option("--all", "everything", is_flag=True, help="Also show figures that are the same.")
def command(first: str, second: str, threshold: float, everything: bool) -> None:
    """Compare two results of the benchmark: how much slower or faster is this library in the file SECOND than in FIRST?

    `collectives bench --json` writes such files. A median time is SLOWER if it has risen by more than the threshold and
    by more than the noise. The rise is more than noise if the 99 % confidence interval of the ratio of the two times
    lies above 1. The interval is computed from the raw samples.

    A time is marked "mode" if the machine's cores or caches were faster in one of the two runs. Such times are not
    compared. See docs/benchmark.md, "Modes of a machine".

    The exit code is 1 if anything is SLOWER, 2 if the files cannot be compared.
    """
    try:
        found = compare(read(first), read(second), threshold)
    except (NotComparable, OSError, KeyError) as error:
        raise click.UsageError(str(error) if not isinstance(error, KeyError) else f"no {error} in a result") from error
    _print(found, everything)
    sys.exit(REFUTED if found.count(SLOWER) else 0)


def _print(found: Comparison, everything: bool) -> None:
    console = screen().console()
    for remark in found.remarks:
        console.print(Text(f"# different {remark}", style="yellow"))
    width = max(len(change.title) for change in found.changes)
    console.print(
        Text(
            f"# {'collective':<{width}} {'size':>12} {'type':>10} {'redop':>6} {'ranks':>5} {'':>12} "
            f"{'first':>10} {'second':>10} {'quotient':>8} {'interval':>17}",
            style="bold",
        )
    )
    for change in found.changes:
        if change.verdict == SAME and not everything:
            continue
        line = Text(
            f"  {change.title:<{width}} {change.nbytes:>12} {change.dtype:>10} {change.op:>6} {change.ranks:>5} "
            f"{change.name:>12} {microseconds(change.first):>10} {microseconds(change.second):>10} "
            f"{change.quotient:>8.3f} {change.low:>8.3f} {change.high:>8.3f} "
        )
        console.print(line.append(change.verdict, _STYLES[change.verdict]))
    typical = math.exp(sum(math.log(change.quotient) for change in found.changes) / len(found.changes))
    reported = ", ".join(f"{found.count(verdict)} {verdict}" for verdict in (SLOWER, FASTER, SAME, MODE))
    console.print(Text(f"# {reported}; geometric mean of quotients {typical:.3f}; {found.missing} in one file only"))
