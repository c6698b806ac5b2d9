"""`collectives explain`: the algorithm chosen for a collective, the reasons, and the steps of ranks.

Invariant: the output comes from the functions that a communicator uses too: `select`, and those of the algorithms. No
rank is started and nothing is sent.
"""

from __future__ import annotations

import inspect
import itertools
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from collectives.algorithms import registry
from collectives.arrays.array import dtype_names
from collectives.commands.machine import this_machine
from collectives.commands.modules import load
from collectives.commands.options import Names, picture
from collectives.core import choosing
from collectives.core.explaining import row_lines
from collectives.core.links import NETWORKS
from collectives.schedule.algorithm import Algorithm
from collectives.schedule.conditions import COLLECTIVES
from collectives.schedule.drawing import draw
from collectives.schedule.form import Schedule
from collectives.schedule.group import Group
from collectives.schedule.layout import Layout, even
from collectives.schedule.listing import explain, explain_group
from collectives.schedule.play import Play
from collectives.schedule.select import ladder, select, select_wire
from collectives.schedule.table import ANY_SIZE, WIRED, Row, Situation, Table, text
from collectives.schedule.verification import cost
from collectives.transports.host import usable_cores

SIDE_BY_SIDE: Final = 8  # ranks that are shown side by side; of a larger group, one rank is shown
MOST_COUNTED: Final = 128  # ranks: in larger groups rounds are not counted, and nothing is drawn
MOST_RANKS: Final = 1 << 16
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_ITEMSIZES: Final = {name: dtype.itemsize for dtype, name in dtype_names().items()}


def bytes_text(count: int) -> str:
    """`count` bytes as text in the largest unit that fits (bytes, KiB, MiB or GiB), such as "4 MiB" or "1.50 KiB"."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count // unit} {name}" if count % unit == 0 else f"{count / unit:.2f} {name}"
    return f"{count} bytes"


def _size(ctx: click.Context, param: click.Parameter, value: str) -> int:
    found = re.fullmatch(r"(\d{1,15})([KMG]?)(i?B)?", value.strip(), re.IGNORECASE)
    if found is None:
        raise click.BadParameter(f"{value!r} is no number of bytes, such as 4096, 64K, 4M or 1G")
    return int(found[1]) * _UNITS[found[2].upper()]


@click.command("explain")
@click.argument("collective", required=False, type=Names(list(COLLECTIVES)), metavar="[COLLECTIVE]")
@click.option("-n", "--ranks", type=click.IntRange(1, MOST_RANKS), default=4, show_default=True, metavar="N")
@click.option(
    "--rank", type=click.IntRange(min=0), metavar="R", help="Show this rank's steps, with what they wait for."
)
@click.option("--root", type=click.IntRange(min=0), default=0, show_default=True, metavar="R")
@click.option("--algorithm", default="auto", show_default=True, metavar="NAME", help="One of those --list shows.")
@click.option(
    "-b",
    "--bytes",
    "nbytes",
    default="4M",
    callback=_size,
    metavar="SIZE",
    show_default=True,
    help="The larger of the two arrays that a rank passes and gets.",
)
@click.option("-d", "--dtype", type=Names(list(_ITEMSIZES)), default="float32", show_default=True, metavar="NAME")
@click.option(
    "--wire", type=Names(["auto"]), metavar="auto", help="Also show the format in which auto sends float32 arrays."
)
@click.option(
    "--transport",
    type=Names(["shm", "tcp", "verbs", "inproc"]),
    default="shm",
    show_default=True,
    help="The slowest that any two ranks use. inproc: threads.",
)
@click.option(
    "--ranks-per-host",
    type=click.IntRange(1),
    metavar="N",
    help="Ranks on each host, numbered host by host. Default: one over tcp and verbs, else all.",
)
@click.option("--draw", "file", type=click.Path(path_type=Path), callback=picture, help="Draw it: .svg, .png or .pdf.")
@click.option("--import", "module", metavar="MODULE", help="A module that registers algorithms of your own.")
@click.option("--table", "whole", is_flag=True, help="Print the table that auto goes by, as such a file is written.")
@click.option("--list", "listing", is_flag=True, help="Show the algorithms there are.")
def command(
    collective: str | None,
    ranks: int,
    rank: int | None,
    root: int,
    algorithm: str,
    nbytes: int,
    dtype: str,
    wire: str | None,
    transport: str,
    ranks_per_host: int | None,
    file: Path | None,
    module: str | None,
    whole: bool,
    listing: bool,
) -> None:
    """Show which algorithm a COLLECTIVE among N ranks would use, why, and each rank's steps. Default: allreduce.

    \b
      collectives explain allreduce --ranks 4 --bytes 64K
      collectives explain allreduce --ranks 6 --algorithm tree --rank 2
      collectives explain allreduce --ranks 8 --ranks-per-host 4 --transport tcp
      collectives explain alltoall --ranks 4 --algorithm bruck --draw bruck.svg
      collectives explain --table --ranks 4
      collectives explain --list
    """
    if module is not None:
        load(module)
    if listing:
        click.echo("\n".join(_list([collective] if collective else list(COLLECTIVES))))
        return
    if transport not in NETWORKS and ranks_per_host is not None and ranks_per_host < ranks:
        raise click.BadParameter(f"several hosts are not linked by {transport}", param_hint="'--ranks-per-host'")
    if wire is not None and (collective or "allreduce") not in WIRED:
        raise click.UsageError(f"{collective} has no wire formats; {', '.join(WIRED)} have")
    if rank is not None and rank >= ranks:
        raise click.BadParameter(f"{rank} is not one of {ranks} ranks, counted from 0", param_hint="'--rank'")
    if file is not None and ranks > MOST_COUNTED:
        raise click.BadParameter(f"a picture has room for {MOST_COUNTED} ranks", param_hint="'--draw'")
    kind = transport if ranks > 1 else "self"
    layout = even(ranks, ranks_per_host or (1 if kind in NETWORKS else ranks))
    most = max(map(len, layout.members))
    situation = Situation(ranks, kind, most > usable_cores(), per_host=most, hosts=len(layout.members))
    table = _table(situation)
    if whole:
        click.echo("\n".join(_whole(table, collective)))
        return
    collective = collective or "allreduce"
    elements = 1 if collective == "barrier" else nbytes // _ITEMSIZES[dtype]
    chosen, reason, row = _choose(collective, algorithm, elements * _ITEMSIZES[dtype], situation, table)
    shown = range(ranks) if ranks <= MOST_COUNTED else (rank or 0,)
    try:
        schedules = [chosen(r, ranks, root, layout) for r in shown]
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    lines = [*_head(collective, elements, dtype, chosen, reason, row, situation, schedules, table), ""]
    if wire is not None:
        lines[-1:] = ["", *_wire(collective, elements, dtype, situation, table), ""]
    if rank is None and 1 < ranks <= SIDE_BY_SIDE:
        lines.append(explain_group(schedules, max(60, shutil.get_terminal_size((120, 24)).columns), layout=layout))
    else:
        lines.append(explain(next(s for s in schedules if s.rank == (rank or 0))))
    click.echo("\n".join(lines))
    if file is not None:
        _draw(schedules, file, layout)


def row_text(row: Row) -> str:
    return f"up to {bytes_text(row.bytes)}" if row.bytes < ANY_SIZE else "any size"


def _table(situation: Situation) -> Table:
    """The table that rank 0 would use if it were started here."""
    try:
        wanted = choosing.wish(0, None, None)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    return choosing.in_force(wanted, this_machine(), situation)


def _whole(table: Table, collective: str | None) -> Iterator[str]:
    """The lines of the algorithm table, as text; `collective`: only its rows. A comment names where rows come from."""
    rows = [row for row in table.rows if collective in (None, row.collective)]
    for source, some in itertools.groupby(rows, key=lambda row: row.source.partition(", line ")[0]):
        yield f"# {source}"
        yield text(Table(tuple(some)))


def _choose(
    collective: str, algorithm: str, nbytes: int, situation: Situation, table: Table
) -> tuple[Algorithm, str, Row | None]:
    if algorithm != "auto":
        try:
            return registry.get(collective, algorithm), "asked for", None
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="'--algorithm'") from None
    usable = {a.name: a for a in registry.algorithms(collective, situation.size)}
    choice = select(collective, nbytes, situation, usable.__contains__, table)
    return usable[choice.algorithm], choice.reason, choice.row


def _head(
    collective: str,
    elements: int,
    dtype: str,
    chosen: Algorithm,
    reason: str,
    row: Row | None,
    situation: Situation,
    schedules: Sequence[Schedule],
    table: Table,
) -> Iterator[str]:
    """The choice, its reason, its cost, and the alternatives."""
    size, nbytes = situation.size, elements * _ITEMSIZES[dtype]
    links = {"self": "alone", "inproc": "threads of one process"}.get(situation.kind, f"over {situation.kind}")
    what = "barrier" if collective == "barrier" else f"{collective} of {bytes_text(nbytes)} ({elements} {dtype})"
    yield f"{what}, {size} rank{'s' * (size > 1)}, {links}"
    yield ""
    yield f"  algorithm  {chosen.name}: {reason}"
    yield from row_lines(row, 11)
    if len(schedules) == size:
        yield f"  cost       {_cost(schedules, nbytes)}"
    for number, line in enumerate((inspect.getdoc(chosen.function) or "").splitlines()):
        yield f"  {'' if number else 'how':9}  {line}".rstrip()
    usable = [a.name for a in registry.algorithms(collective, size)]
    yield f"  others     {', '.join(name for name in usable if name != chosen.name) or 'none'}"
    yield ""
    yield f"  auto chooses for {collective} in such a group"
    steps = ladder(collective, situation, usable.__contains__, table)
    yield from (f"    {row_text(step):16} {step.algorithm:22} {step.reason}" for step in steps)


def _wire(collective: str, elements: int, dtype: str, situation: Situation, table: Table) -> Iterator[str]:
    """The wire format that calls with wire="auto" use in such a group."""
    if dtype != "float32":
        yield f"  wire       auto: {dtype} is sent as it is, formats are for float32"
        return
    choice = select_wire(collective, elements * _ITEMSIZES[dtype], situation, table)
    yield f"  wire       auto chooses {choice.algorithm}: {choice.reason}"
    yield from row_lines(choice.row, 11)


def _cost(schedules: Sequence[Schedule], nbytes: int) -> str:
    """The rounds, messages, bytes sent and scratch memory of the schedules, as text; the largest of any rank each.

    `nbytes`: the size of the larger buffer, input or output, whose blocks are taken to be equal in size.
    """
    found, blocks = cost(Play(Group(schedules))), max(*schedules[0].grid, 1)
    text = f"{_count(found.rounds, 'round')}; a rank sends at most {_count(found.messages, 'message')}, "
    text += bytes_text(nbytes * found.blocks // blocks)
    return text + (f"; scratch {bytes_text(nbytes * found.scratch // blocks)}" if found.scratch else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _list(collectives: Sequence[str]) -> Iterator[str]:
    for number, name in enumerate(collectives):
        if number:
            yield ""
        yield name
        for known in registry.algorithms(name):
            claimed = (("in place", known.in_place), ("v", known.uneven), ("ordered", known.in_order))
            claims = [text for text, is_so in claimed if is_so]
            summary = (inspect.getdoc(known.function) or "").partition("\n")[0]
            yield f"  {known.name:22} {', '.join(claims):20} {summary}".rstrip()
    yield ""
    yield "in place: without a copy where x and out are one array; v: also for parts of different sizes"
    yield "ordered: operands are combined in the order of ranks, as functions need that are not commutative"


def _draw(schedules: Sequence[Schedule], file: Path, layout: Layout) -> None:
    try:
        draw(schedules, file, layout=layout)
    except (ImportError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"\ndrawn into {file}", err=True)
