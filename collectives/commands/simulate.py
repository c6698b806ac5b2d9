"""`collectives simulate`: how long collectives, or a training step, would take among ranks that need not be there.

Invariant: what is played are the schedules that ranks would run. No rank is started and nothing is sent.
"""

from __future__ import annotations

import json as jsonlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from collectives import choosing, sizes, tables
from collectives.algorithms import registry
from collectives.commands.curves import FORMATS, Line, Panel, plot
from collectives.commands.modules import load
from collectives.init import library_version
from collectives.schedule import training
from collectives.schedule.algorithm import Algorithm
from collectives.schedule.check import VerificationError
from collectives.schedule.conditions import COLLECTIVES
from collectives.schedule.cost import NAMES, Costs, seconds
from collectives.schedule.defaults import DEFAULTS
from collectives.schedule.select import select
from collectives.schedule.simulate import Prediction, simulate
from collectives.schedule.table import Situation
from collectives.schedule.topology import Switches, Topology
from collectives.tables import Machine
from transports.host import usable_cores

_T = TypeVar("_T")

MOST_RANKS: Final = 1 << 22
MOST_CASES: Final = 10_000
_GRID: Final = 4  # between sizes that are simulated where there are too many to simulate each
_EACH: Final = 8  # so many are
_TIMES: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


@dataclass(frozen=True, slots=True)
class _Setting:
    """What all simulations of one run have in common. No `algorithms`: the one that would be chosen.

    `kind`: of the links, None: shared memory within a host, tcp between hosts. `here`: on this machine.
    """

    collective: str
    algorithms: tuple[Algorithm, ...]
    topology: Topology
    costs: Costs
    root: int
    kind: str | None = None
    here: bool = False

    def predict(self, algorithm: Algorithm, ranks: int, nbytes: int) -> Prediction:
        return simulate(algorithm, ranks, nbytes, self.topology, self.costs, self.root)

    def candidates(self, ranks: int, nbytes: int) -> tuple[Algorithm, ...]:
        return self.algorithms or (self._chosen(ranks, nbytes),)

    def _chosen(self, ranks: int, nbytes: int) -> Algorithm:
        """By the built-in table or, `here`, by the one that is in force on this machine."""
        most = min(self.topology.ranks_per_host, ranks)
        hosts = -(-ranks // self.topology.ranks_per_host)
        kind = "self" if ranks == 1 else self.kind or ("shm" if hosts == 1 else "tcp")
        situation = Situation(ranks, kind, self.topology.per_core(ranks) > 1, most, hosts)
        table = DEFAULTS
        if self.here:
            machine = Machine.here(usable_cores(), library_version())
            table = choosing.in_force(choosing.wish(0, None, None), machine, situation)
        usable = {known.name: known for known in registry.algorithms(self.collective, ranks)}
        return usable[select(self.collective, nbytes, situation, usable.__contains__, table).algorithm]


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


def _file(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and value.suffix not in FORMATS:
        raise click.BadParameter(f"{str(value)!r} must end in {', '.join(FORMATS)}")
    return _writable(ctx, param, value)


def _writable(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and (value.is_dir() or not os.access(value.absolute().parent, os.W_OK)):
        raise click.BadParameter(f"{value} cannot be written")
    return value


@click.command("simulate")
@click.argument("collective", required=False, type=click.Choice(list(COLLECTIVES)), metavar="[COLLECTIVE]")
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
    help="This machine, with the costs that `collectives bench simulator` found for KIND: shm or tcp.",
)
@click.option("--show-costs", is_flag=True, help="Print the costs in force, as such a file is written.")
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
@click.option("--plot", "picture", type=click.Path(path_type=Path), callback=_file, help="Draw: .svg, .png or .pdf.")
@click.option("--json", "document", type=click.Path(path_type=Path), callback=_writable, help="Write all figures.")
@click.option("--import", "module", metavar="MODULE", help="A module that registers algorithms of your own.")
def command(
    collective: str | None,
    ranks: list[int],
    nbytes: list[int] | None,
    maxbytes: int | None,
    stepfactor: float | None,
    names: str,
    root: int,
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
    gradients: str | None,
    compute_time: float | None,
    bucket: int,
    backward: float,
    scaling: str,
    picture: Path | None,
    document: Path | None,
    module: str | None,
) -> None:
    """Predict how long a COLLECTIVE (allreduce, unless another is named) takes among N ranks, or a training step.

    The schedules that ranks would run are played over hosts, network cards and switches with the costs given.

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
        setting = _Setting(
            collective or "allreduce",
            _algorithms(collective or "allreduce", names),
            Topology(ranks_per_host, cores or 0, cards, _levels(radix, oversubscription)),
            costs,
            root,
            kind,
            kind is not None,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if root and (root >= ranks[0] or not COLLECTIVES[setting.collective].rooted):
        raise click.UsageError(f"--root {root}: not in all these groups, or {setting.collective} has none")
    if gradients is not None:
        if collective not in (None, "allreduce") or nbytes is not None or maxbytes is not None:
            raise click.UsageError("--gradients are sizes for allreduce: they go with no others")
        if not compute_time:
            raise click.UsageError("--gradients needs --compute-time, of a step on one rank")
        panels, figures = _train(setting, ranks, _gradients(gradients), compute_time, bucket, backward, scaling)
    else:
        if compute_time is not None:
            raise click.UsageError("--compute-time is for --gradients")
        panels, figures = _sweep(setting, ranks, _all_sizes(nbytes, maxbytes, stepfactor))
    if document is not None:
        head = {"costs": asdict(costs), "topology": asdict(setting.topology), "root": root}
        document.write_text(jsonlib.dumps({**head, **figures}, indent=1) + "\n")
    if picture is not None:
        try:
            plot(panels, picture)
        except (ImportError, OSError) as error:
            raise click.ClickException(str(error)) from error
        click.echo(f"drawn into {picture}", err=True)


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
    """ValueError where there are none, or the file is damaged."""
    found = tables.load_costs(Machine.here(usable_cores(), library_version()), kind)
    if found is None:
        raise ValueError(f"no costs for {kind} are known here: collectives bench simulator --transport {kind}")
    return found


def _algorithms(collective: str, names: str) -> tuple[Algorithm, ...]:
    """None for "auto"."""
    if names.strip() == "auto":
        return ()
    if names.strip() == "all":
        return registry.algorithms(collective)
    found = [registry.get(collective, name.strip()) for name in names.split(",")]
    return tuple(dict.fromkeys(found))


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


def _sweep(setting: _Setting, counts: Sequence[int], all_sizes: Sequence[int]) -> tuple[list[Panel], dict[str, Any]]:
    """Print a table for each number of ranks and size."""
    if len(counts) * len(all_sizes) * max(1, len(setting.algorithms)) > MOST_CASES:
        raise click.UsageError(f"more than {MOST_CASES} simulations")
    found: list[Prediction] = []
    collective = setting.collective
    width = max(len(known.name) for known in setting.algorithms or registry.algorithms(collective))
    for count in counts:
        for nbytes in all_sizes:
            click.echo(f"{collective} of {_bytes_text(nbytes)}, {_ranks_text(count, setting.topology)}")
            click.echo(
                f"  {'algorithm':{width}} {'time':>10} {'busbw':>10} {'rounds':>8} {'rank sends':>11}  bottleneck"
            )
            fastest: Prediction | None = None
            for algorithm in setting.candidates(count, nbytes):
                one = _predict(setting, algorithm, count, nbytes)
                if isinstance(one, str):
                    click.echo(f"  {algorithm.name:{width}} {one}")
                    continue
                click.echo(f"  {algorithm.name:{width}} {_line(one)}")
                found.append(one)
                fastest = one if fastest is None or one.seconds < fastest.seconds else fastest
            if fastest is not None and len(setting.algorithms) > 1:
                click.echo(f"  fastest: {fastest.algorithm}")
            click.echo()
    return list(_panels(found)), {"predictions": [{**asdict(one), "busbw": one.busbw} for one in found]}


def _predict(setting: _Setting, algorithm: Algorithm, ranks: int, nbytes: int) -> Prediction | str:
    """Or why not."""
    try:
        return setting.predict(algorithm, ranks, nbytes)
    except VerificationError as error:
        return f"wrong: {error.problem}"
    except ValueError as error:
        return str(error)


def _line(one: Prediction) -> str:
    where = f"{one.bottleneck} ({one.share:.0%} busy)" if one.bottleneck != "latency" else "latency"
    columns = f"{time_text(one.seconds):>10} {one.busbw / 1e9:>5.2f} GB/s {one.rounds:>8} {_bytes_text(one.sent):>11}"
    return f"{columns}  {where}"


def _panels(found: Sequence[Prediction]) -> Iterator[Panel]:
    """Time against size, for each number of ranks; against ranks where there is one size."""
    counts, all_sizes = (sorted({getattr(one, name) for one in found}) for name in ("ranks", "nbytes"))
    if len(all_sizes) == 1 and len(counts) > 1:
        title = f"{found[0].collective} of {_bytes_text(all_sizes[0])}"
        yield Panel(title, "ranks", "predicted time (us)", _lines(found, "ranks"))
        return
    for count in counts:
        some = [one for one in found if one.ranks == count]
        title = f"{some[0].collective}, {count} ranks"
        yield Panel(title, "bytes", "predicted time (us)", _lines(some, "nbytes"), sizes.text)


def _lines(found: Sequence[Prediction], across: str) -> dict[str, Line]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for one in found:
        lines.setdefault(one.algorithm, []).append((max(getattr(one, across), 1), one.seconds * 1e6))
    return dict(lines)


# --- training


def _gradients(text: str) -> list[training.Gradient]:
    file = Path(text)
    try:
        return training.parse(file.read_text() if file.is_file() else text)
    except (ValueError, OSError) as error:
        where = f"{file}: " if file.is_file() else ""
        raise click.BadParameter(f"{where}{error}", param_hint="'--gradients'") from None


def _train(
    setting: _Setting,
    counts: Sequence[int],
    gradients: Sequence[training.Gradient],
    compute: float,
    bucket: int,
    backward: float,
    scaling: str,
) -> tuple[list[Panel], dict[str, Any]]:
    """Print a step for each number of ranks."""
    total = sum(gradient.nbytes for gradient in gradients)
    click.echo(f"{len(gradients)} gradients of {_bytes_text(total)}, {time_text(compute)} of computing on one rank")
    click.echo(f"scaling {scaling}, {setting.topology.ranks_per_host} a host, the fastest algorithm for each bucket")
    titles = " ".join(f"{title:>10}" for title in ("compute", "allreduce", "step"))
    click.echo(f"  {'ranks':>8} {titles} {'speed-up':>9}   {'not overlapped':>14} {'speed-up':>9}")
    curves: dict[str, list[tuple[float, float]]] = {"overlapped": [], "not overlapped": [], "ideal": []}
    steps = []
    for count in counts:
        share = compute / count if scaling == "strong" else compute
        scale = share / compute
        timed = [g if g.ready is None else training.Gradient(g.nbytes, g.ready * scale) for g in gradients]
        parts = training.buckets(timed, share, bucket, backward)
        one = training.step(parts, share, count, _allreduce(setting, count, [part.nbytes for part in parts]))
        with_, without = training.speedup(one, compute)
        steps.append({**asdict(one), "speedup": with_, "speedup_alone": without})
        columns = [f"{time_text(value):>10}" for value in (one.compute, one.communication, one.overlapped)]
        tail = f"{with_:>9.2f}   {time_text(one.alone):>14} {without:>9.2f}"
        click.echo(f"  {count:>8} {' '.join(columns)} {tail}")
        for label, value in (("overlapped", with_), ("not overlapped", without), ("ideal", float(count))):
            curves[label].append((count, value))
    return [Panel(f"training step, {scaling} scaling", "ranks", "predicted speed-up", dict(curves))], {
        "scaling": scaling,
        "steps": steps,
    }


def _allreduce(setting: _Setting, ranks: int, wanted: Sequence[int]) -> Callable[[int], float]:
    """What the fastest algorithm takes. Of many sizes some are simulated and those between interpolated."""
    distinct = sorted(set(wanted))
    known = distinct
    if len(distinct) > _EACH:
        known = sorted({*sizes.series(max(distinct[0], 1), distinct[-1], _GRID, None), distinct[0], distinct[-1]})
    times = {} if ranks == 1 else {nbytes: _fastest(setting, ranks, nbytes) for nbytes in known}

    def takes(nbytes: int) -> float:
        if nbytes in times:
            return times[nbytes]
        low, high = next((a, b) for a, b in pairwise(known) if a < nbytes < b)
        return times[low] + (times[high] - times[low]) * (nbytes - low) / (high - low)

    return takes


def _fastest(setting: _Setting, ranks: int, nbytes: int) -> float:
    found, reasons = math.inf, []
    for algorithm in setting.candidates(ranks, nbytes):
        one = _predict(setting, algorithm, ranks, nbytes)
        if isinstance(one, str):
            reasons.append(f"{algorithm.name}: {one}")
        else:
            found = min(found, one.seconds)
    if math.isinf(found):
        raise click.ClickException(f"no algorithm for {ranks} ranks\n" + "\n".join(reasons))
    return found


# --- text


def time_text(value: float) -> str:
    """Four digits that mean something, and the unit that leaves one to three before the point."""
    unit, name = next((pair for pair in _TIMES if value >= pair[0]), _TIMES[-1])
    number = value / unit
    return f"{number:.{max(0, 3 - len(str(int(number))))}f} {name}"


def _bytes_text(count: float) -> str:
    whole = round(count)
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if whole >= unit:
            return f"{whole / unit:.4g} {name}"
    return f"{whole} B"


def _ranks_text(count: int, topology: Topology) -> str:
    hosts = -(-count // topology.ranks_per_host)
    return f"{count} rank{'s' * (count != 1)} on {hosts} host{'s' * (hosts != 1)}"
