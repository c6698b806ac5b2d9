"""`collectives simulate`: predict the time of collectives, or of a training step, for any number of ranks.

Invariant: the simulated schedules are those that ranks would run. No rank is started and nothing is sent.
"""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final, TypeVar

import click

from collectives.algorithms import registry
from collectives.arrays.wire import AUTO, WireChoice, format_of
from collectives.base import sizes
from collectives.commands.curves import plot
from collectives.commands.machine import this_machine
from collectives.commands.modules import load
from collectives.commands.options import Names, picture, writable
from collectives.commands.predictions import Setting, sweep, train
from collectives.core import choosing, tables
from collectives.core.links import NETWORKS
from collectives.schedule.algorithm import Algorithm
from collectives.schedule.conditions import COLLECTIVES
from collectives.schedule.table import WIRED, Table
from collectives.simulation import training
from collectives.simulation.cost import NAMES, Costs, seconds
from collectives.simulation.topology import Switches, Topology
from collectives.transports.host import usable_cores

_T = TypeVar("_T")

MOST_RANKS: Final = 1 << 22


def _sizes(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int] | None:
    return None if value is None else _checked(_series, value, sizes.parse)


def _counts(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    found = _checked(_series, value, int)
    if not 1 <= found[0] <= found[-1] <= MOST_RANKS:
        raise click.BadParameter(f"there can be 1 to {MOST_RANKS} ranks")
    return found


def _series(text: str, number: Callable[[str], int]) -> list[int]:
    """One number, or FIRST:LAST or FIRST:LAST:FACTOR."""
    first, *rest = text.split(":")
    if not rest:
        return [number(first)]
    if len(rest) > 2:
        raise ValueError(f"{text!r} is not FIRST:LAST:FACTOR")
    return sizes.series(number(first), number(rest[0]), float(rest[1]) if len(rest) == 2 else 2.0, None)


def _time(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    return None if value is None else _checked(seconds, value)


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    return None if value is None else _checked(sizes.parse, value)


def _numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[float, ...]:
    return () if value is None else _checked(lambda text: tuple(float(part) for part in text.split(",")), value)


def _checked(read: Callable[..., _T], *arguments: object) -> _T:
    try:
        return read(*arguments)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("simulate")
@click.argument("collective", required=False, type=Names(list(COLLECTIVES)), metavar="[COLLECTIVE]")
@click.option(
    "-n",
    "--ranks",
    default="8",
    callback=_counts,
    metavar="N",
    show_default=True,
    help="Or several: FIRST:LAST or FIRST:LAST:FACTOR.",
)
@click.option(
    "-b",
    "--bytes",
    "nbytes",
    callback=_sizes,
    metavar="SIZE",
    help="The larger array that a rank passes or gets; or FIRST:LAST:FACTOR.  [default: 4M]",
)
@click.option("-e", "--maxbytes", callback=_size, metavar="SIZE", help="Largest size, from --bytes on.")
@click.option("-f", "--stepfactor", type=float, metavar="FACTOR", help="Between sizes up to -e.  [default: 2]")
@click.option(
    "--algorithms",
    "--algorithm",
    "names",
    default="all",
    show_default=True,
    metavar="NAMES",
    help="Joined by commas; or auto.",
)
@click.option("--root", type=click.IntRange(min=0), default=0, show_default=True, metavar="RANK")
@click.option(
    "--transport",
    "network",
    type=Names(list(NETWORKS)),
    default="tcp",
    show_default=True,
    metavar="NAME",
    help="Between hosts, for --algorithms auto and --wire auto: tcp or verbs.",
)
@click.option("--ranks-per-host", type=click.IntRange(min=1), default=1, show_default=True, metavar="N")
@click.option("--cores", type=click.IntRange(min=1), metavar="N", help="Of a host.  [default: one for each rank]")
@click.option(
    "--cards", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Network cards of a host."
)
@click.option(
    "--radix",
    callback=_numbers,
    metavar="NUMBERS",
    help="Hosts below a switch, then switches below one of the next level, ...  [default: one switch for all]",
)
@click.option(
    "--oversubscription",
    callback=_numbers,
    metavar="NUMBERS",
    help="Of each level: what comes from below over what goes up.  [default: 1]",
)
@click.option("--latency", metavar="TIME", help="Between hosts, such as 2us.")
@click.option("--bandwidth", metavar="RATE", help="Of a network card, such as 100Gbit or 12.5GB.")
@click.option("--cost", "changes", multiple=True, metavar="NAME=VALUE", help=f"Another cost: {', '.join(NAMES)}.")
@click.option(
    "--costs",
    "costs_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A file of NAME = VALUE lines.",
)
@click.option(
    "--here",
    "kind",
    metavar="KIND",
    help="This machine, with the costs that `collectives bench simulator` found for KIND: shm, tcp or verbs.",
)
@click.option("--show-costs", is_flag=True, help="Print the costs in force, as such a file is written.")
@click.option(
    "--wire",
    metavar="FORMAT",
    help="Of float32 arrays: bf16, fp16, fp8, int8 or auto. Encoding is not simulated, only sending.",
)
@click.option(
    "--table",
    "file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="A table for --algorithms auto and --wire auto, as collectives calibrate writes it.",
)
@click.option("--gradients", metavar="FILE|SIZES", help="A training step: its gradients, the first to be ready first.")
@click.option("--compute-time", callback=_time, metavar="TIME", help="Of a training step on one rank, such as 120ms.")
@click.option(
    "--bucket", default="25M", show_default=True, callback=_size, metavar="SIZE", help="Gradients sent as one; 0: none."
)
@click.option(
    "--backward",
    type=click.FloatRange(0, 1),
    default=training.BACKWARD,
    metavar="SHARE",
    help="Part of the compute time in which gradients become ready.  [default: 2/3]",
)
@click.option(
    "--scaling",
    type=click.Choice(["weak", "strong"]),
    default="weak",
    show_default=True,
    help="weak: each rank computes as long as one alone; strong: they share its work.",
)
@click.option("--plot", "drawing", type=click.Path(path_type=Path), callback=picture, help="Draw: .svg, .png or .pdf.")
@click.option("--json", "document", type=click.Path(path_type=Path), callback=writable, help="Write all figures.")
@click.option("--import", "module", metavar="MODULE", help="A module that registers algorithms of your own.")
def command(
    collective: str | None,
    ranks: list[int],
    nbytes: list[int] | None,
    maxbytes: int | None,
    stepfactor: float | None,
    names: str,
    root: int,
    network: str,
    ranks_per_host: int,
    cores: int | None,
    cards: int,
    radix: tuple[float, ...],
    oversubscription: tuple[float, ...],
    latency: str | None,
    bandwidth: str | None,
    changes: tuple[str, ...],
    costs_file: Path | None,
    kind: str | None,
    show_costs: bool,
    wire: str | None,
    file: Path | None,
    gradients: str | None,
    compute_time: float | None,
    bucket: int,
    backward: float,
    scaling: str,
    drawing: Path | None,
    document: Path | None,
    module: str | None,
) -> None:
    """Predict the time of a COLLECTIVE (allreduce, unless another is named), or of a training step, among N ranks.

    The schedules that ranks would run are simulated on a model of hosts, network cards and switches.

    \b
      collectives simulate allreduce --ranks 65536 --ranks-per-host 8 --bytes 100M
      collectives simulate --ranks 64 --bytes 1K:1G:4 --plot sizes.svg
      collectives simulate broadcast --ranks 2:4096 --radix 32 --oversubscription 4
      collectives simulate --gradients 97M,16M,4M --compute-time 120ms --ranks 1:1024 --plot speedup.svg
    """
    if module is not None:
        load(module)
    if kind is not None:
        if ranks_per_host != 1 or cores is not None or costs_file is not None or radix:
            raise click.UsageError("--here is this machine, with costs of its own: it goes with none of those options")
        ranks_per_host, cores = ranks[-1], usable_cores()
    costs = _costs(costs_file, kind, latency, bandwidth, changes)
    if show_costs:
        click.echo(costs.to_text(), nl=False)
        return
    try:
        setting = Setting(
            collective or "allreduce",
            _algorithms(collective or "allreduce", names),
            Topology(ranks_per_host, cores or 0, cards, _levels(radix, oversubscription)),
            costs,
            root,
            kind,
            kind is not None,
            _wire(wire),
            network,
            _table(file),
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if root and (root >= ranks[0] or not COLLECTIVES[setting.collective].rooted):
        raise click.UsageError(f"--root {root}: not in all these groups, or {setting.collective} has none")
    if wire is not None and (setting.collective not in WIRED or gradients is not None):
        raise click.UsageError(f"--wire is for {', '.join(WIRED)}, and does not go with --gradients")
    if file is not None and setting.algorithms and wire != AUTO:
        raise click.UsageError("--table is for --algorithms auto and --wire auto")
    if gradients is not None:
        if collective not in (None, "allreduce") or nbytes is not None or maxbytes is not None:
            raise click.UsageError("--gradients are sizes for allreduce: they go with no others")
        if not compute_time:
            raise click.UsageError("--gradients needs --compute-time, of a step on one rank")
        panels, figures = train(setting, ranks, _gradients(gradients), compute_time, bucket, backward, scaling)
    else:
        if compute_time is not None:
            raise click.UsageError("--compute-time is for --gradients")
        panels, figures = sweep(setting, ranks, _all_sizes(nbytes, maxbytes, stepfactor))
    if document is not None:
        head = {"wire": wire, "costs": asdict(costs), "topology": asdict(setting.topology), "root": root}
        document.write_text(jsonlib.dumps({**head, **figures}, indent=1) + "\n")
    if drawing is not None:
        try:
            plot(panels, drawing)
        except (ImportError, OSError) as error:
            raise click.ClickException(str(error)) from error
        click.echo(f"drawn into {drawing}", err=True)


def _costs(
    file: Path | None, kind: str | None, latency: str | None, bandwidth: str | None, changes: Sequence[str]
) -> Costs:
    costs = Costs()
    try:
        if file is not None:
            costs = Costs.from_text(file.read_text())
        if kind is not None:
            costs = _found_here(kind)
    except (ValueError, OSError) as error:
        what = "" if file is None else f"{file}: "
        raise click.BadParameter(f"{what}{error}", param_hint=f"'{'--here' if file is None else '--costs'}'") from None
    named = [("--latency", "latency", latency), ("--bandwidth", "bandwidth", bandwidth)]
    for change in changes:
        name, _, value = change.partition("=")
        named.append(("--cost", name.strip(), value))
    for option, name, text in named:
        if text is not None:
            try:
                costs = costs.with_(name, text)
            except ValueError as error:
                raise click.BadParameter(str(error), param_hint=f"'{option}'") from None
    return costs


def _found_here(kind: str) -> Costs:
    """The costs of transport `kind`, measured here earlier. ValueError if there are none, or the file is damaged."""
    found = tables.load_costs(this_machine(), kind)
    if found is None:
        raise ValueError(f"no costs for {kind} are known here: collectives bench simulator --transport {kind}")
    return found


def _algorithms(collective: str, names: str) -> tuple[Algorithm, ...]:
    """The named algorithms; an empty tuple for "auto"."""
    if names.strip() == "auto":
        return ()
    if names.strip() == "all":
        return registry.algorithms(collective)
    found = [registry.get(collective, name.strip()) for name in names.split(",")]
    return tuple(dict.fromkeys(found))


def _wire(name: str | None) -> WireChoice | None:
    if name is None:
        return None
    return AUTO if name == AUTO else format_of(name).name


def _table(file: Path | None) -> Table:
    return choosing.wish(0, file, "off", env={}).table


def _levels(radix: Sequence[float], oversubscription: Sequence[float]) -> tuple[Switches, ...]:
    if len(oversubscription) > len(radix):
        raise ValueError("--oversubscription: there are no such switches; give their --radix")
    if any(number != int(number) for number in radix):
        raise ValueError("--radix: whole numbers of hosts or switches")
    narrow = [*oversubscription, *[1.0] * len(radix)]
    return tuple(Switches(int(number), narrow[level]) for level, number in enumerate(radix))


def _all_sizes(given: list[int] | None, last: int | None, factor: float | None) -> list[int]:
    found = given or [4 << 20]
    if last is None:
        if factor is not None:
            raise click.UsageError("-f is for sizes up to -e")
        return found
    if len(found) > 1:
        raise click.UsageError("-e: --bytes has a last size already")
    try:
        return sizes.series(found[0], last, factor, None)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


# --- collectives


def _gradients(text: str) -> list[training.Gradient]:
    file = Path(text)
    try:
        return training.parse(file.read_text() if file.is_file() else text)
    except (ValueError, OSError) as error:
        where = f"{file}: " if file.is_file() else ""
        raise click.BadParameter(f"{where}{error}", param_hint="'--gradients'") from None
