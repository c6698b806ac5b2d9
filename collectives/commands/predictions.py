"""The output of `collectives simulate`: a table for each number of bytes and ranks, or a table of training steps.

Invariant: the terminal, plots and JSON files show the same numbers, those that the simulation computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

import click

from collectives.algorithms import registry
from collectives.arrays.wire import AUTO, FLOAT32, Format, WireChoice, format_of
from collectives.base import sizes
from collectives.calls import wired
from collectives.calls.formats import format_name
from collectives.commands.curves import Panel
from collectives.commands.machine import this_machine
from collectives.core import choosing
from collectives.core.explaining import row_lines
from collectives.schedule.algorithm import Algorithm
from collectives.schedule.check import VerificationError
from collectives.schedule.defaults import DEFAULTS
from collectives.schedule.select import Choice, select, select_wire
from collectives.schedule.table import Situation, Table, join
from collectives.simulation import training
from collectives.simulation.bounds import efficiency
from collectives.simulation.cost import Costs
from collectives.simulation.simulate import Prediction, simulate
from collectives.simulation.topology import Topology

MOST_CASES: Final = 10_000
_GRID: Final = 4  # factor between simulated sizes, where there are too many sizes to simulate each
_EACH: Final = 8  # sizes: up to this number, each is simulated
NO_TABLE: Final = Table(())
_TIMES: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings that all simulations of one run of `collectives simulate` have in common.

    - `algorithms`: the algorithms to simulate; if empty, the algorithm that a real group would choose
    - `kind`: the transport of the group; None for "shm" on one host, and `network` on several
    - `network`: the transport between hosts, "tcp" or "verbs"
    - `here`: choose algorithms and formats by the table that was measured on this machine
    - `wire`: the wire format in which arrays of float32 are sent, or "auto"; None to send bytes as they are
    - `table`: by which algorithms and formats are chosen, before all other tables
    """

    collective: str
    algorithms: tuple[Algorithm, ...]
    topology: Topology
    costs: Costs
    root: int
    kind: str | None = None
    here: bool = False
    wire: WireChoice | None = None
    network: str = "tcp"
    table: Table = NO_TABLE

    def form(self, ranks: int, nbytes: int) -> tuple[Format | None, Choice | None]:
        """The wire format of an array of `nbytes` bytes, None to send it as it is; for "auto", also the choice."""
        if self.wire is None:
            return None, None
        if self.wire != AUTO:
            return format_of(self.wire), None
        choice = select_wire(self.collective, _whole(nbytes), *self._group(ranks))
        name = format_name(choice.algorithm)
        return None if name is None else format_of(name), choice

    def predict(self, algorithm: Algorithm, ranks: int, nbytes: int) -> Prediction:
        return simulate(algorithm, ranks, nbytes, self.topology, self.costs, self.root)

    def efficiency(self, one: Prediction) -> float | None:
        """The fraction of the available bandwidth that the collective with the prediction `one` uses.

        Available is the bandwidth of the network cards; on one host, the bandwidth of a core that copies data. None if
        the collective moves no data.
        """
        return efficiency(one.collective, one.ranks, one.nbytes, one.seconds, self.topology, self.costs)

    def candidates(self, ranks: int, nbytes: int) -> tuple[Algorithm, ...]:
        """`nbytes`: how many bytes one operation of the engine sends."""
        return self.algorithms or (self._chosen(ranks, nbytes),)

    def _chosen(self, ranks: int, nbytes: int) -> Algorithm:
        situation, table = self._group(ranks)
        usable = {known.name: known for known in registry.algorithms(self.collective, ranks)}
        return usable[select(self.collective, nbytes, situation, usable.__contains__, table).algorithm]

    def _group(self, ranks: int) -> tuple[Situation, Table]:
        """Describes a group, and returns the table by which it chooses."""
        most = min(self.topology.ranks_per_host, ranks)
        hosts = -(-ranks // self.topology.ranks_per_host)
        kind = "self" if ranks == 1 else self.kind or ("shm" if hosts == 1 else self.network)
        situation = Situation(ranks, kind, self.topology.per_core(ranks) > 1, most, hosts)
        if not self.here:
            return situation, join([self.table, DEFAULTS])
        wanted = choosing.wish(0, None, None)
        wanted = replace(wanted, table=join([self.table, wanted.table]))
        return situation, choosing.in_force(wanted, this_machine(), situation)


class Case(NamedTuple):
    """A prediction for an array of `size` bytes, which is sent in the format `form`; None: as it is."""

    size: int
    form: Format | None
    prediction: Prediction

    @property
    def ranks(self) -> int:
        return self.prediction.ranks

    @property
    def algorithm(self) -> str:
        return self.prediction.algorithm


def sent(nbytes: int, form: Format | None) -> int:
    """How many bytes are sent of an array of `nbytes` bytes."""
    if form is None:
        return nbytes
    return form.elements(nbytes // FLOAT32.itemsize) * form.element.itemsize


def _in_section(nbytes: int, form: Format | None) -> int:
    """How many bytes one operation of the engine sends: an encoded array is sent in sections."""
    if form is None:
        return nbytes
    sections = wired.divide([nbytes // FLOAT32.itemsize], form, wired.SECTION // FLOAT32.itemsize)
    return sections[0].inp * form.element.itemsize


def _whole(nbytes: int) -> int:
    """The bytes of an array of float32 with at most `nbytes` bytes."""
    return nbytes // FLOAT32.itemsize * FLOAT32.itemsize


def sweep(setting: Setting, counts: Sequence[int], all_sizes: Sequence[int]) -> tuple[list[Panel], dict[str, Any]]:
    """Prints a table of predicted times of a collective, for each number of ranks and each size.

    `setting`: the settings of all simulations. `counts`: the numbers of ranks. `all_sizes`: the sizes in bytes. Returns
    diagrams of the predictions, and the predictions as a JSON object.
    """
    if len(counts) * len(all_sizes) * max(1, len(setting.algorithms)) > MOST_CASES:
        raise click.UsageError(f"more than {MOST_CASES} simulations")
    found: list[Case] = []
    collective = setting.collective
    width = max(len(known.name) for known in setting.algorithms or registry.algorithms(collective))
    for count in counts:
        for size in all_sizes:
            form, choice = setting.form(count, size)
            nbytes = sent(size, form)
            way = "" if form is None else f", sent as {form.name} in {_bytes_text(nbytes)}"
            click.echo(f"{collective} of {_bytes_text(size)}{way}, {_ranks_text(count, setting.topology)}")
            if choice is not None:
                click.echo(f"  wire  auto chooses {choice.algorithm}: {choice.reason}")
                click.echo("\n".join(row_lines(choice.row, 6)))
            titles = f"{'time':>10} {'busbw':>10} {'of limit':>8} {'rounds':>8} {'rank sends':>11}  bottleneck"
            click.echo(f"  {'algorithm':{width}} {titles}")
            fastest: Prediction | None = None
            for algorithm in setting.candidates(count, _in_section(size, form)):
                one = _predict(setting, algorithm, count, nbytes)
                if isinstance(one, str):
                    click.echo(f"  {algorithm.name:{width}} {one}")
                    continue
                click.echo(f"  {algorithm.name:{width}} {_line(one, setting.efficiency(one))}")
                found.append(Case(size, form, one))
                fastest = one if fastest is None or one.seconds < fastest.seconds else fastest
            if fastest is not None and len(setting.algorithms) > 1:
                click.echo(f"  fastest: {fastest.algorithm}")
            click.echo()
    return list(_panels(found, setting)), {"predictions": [_figures(case, setting) for case in found]}


def _figures(case: Case, setting: Setting) -> dict[str, Any]:
    size, form, one = case
    wire = {} if setting.wire is None else {"size": size, "wire": None if form is None else form.name}
    return {**asdict(one), **wire, "busbw": one.busbw, "efficiency": setting.efficiency(one)}


def _predict(setting: Setting, algorithm: Algorithm, ranks: int, nbytes: int) -> Prediction | str:
    """The prediction, or the reason why there is none."""
    try:
        return setting.predict(algorithm, ranks, nbytes)
    except VerificationError as error:
        return f"wrong: {error.problem}"
    except ValueError as error:
        return str(error)


def _line(one: Prediction, share: float | None) -> str:
    where = f"{one.bottleneck} ({one.share:.0%} busy)" if one.bottleneck != "latency" else "latency"
    limit = "" if share is None else f"{share:.0%}"
    columns = f"{time_text(one.seconds):>10} {one.busbw / 1e9:>5.2f} GB/s {limit:>8} {one.rounds:>8} "
    columns += f"{_bytes_text(one.sent):>11}"
    return f"{columns}  {where}"


def _panels(found: Sequence[Case], setting: Setting) -> Iterator[Panel]:
    """Plots of time and efficiency over bytes for each number of ranks; if only one size was simulated, over ranks."""
    counts, all_sizes = sorted({one.ranks for one in found}), sorted({one.size for one in found})
    collective, per_host = setting.collective, setting.topology.ranks_per_host
    if len(all_sizes) == 1 and len(counts) > 1:
        title = f"{collective} of {_bytes_text(all_sizes[0])}, {per_host} a host"
        yield from _pair(found, title, "ranks", "ranks", str, setting)
        return
    for count in counts:
        some = [one for one in found if one.ranks == count]
        title = f"{collective}, {_ranks_text(count, setting.topology)}"
        yield from _pair(some, title, "size", "bytes", sizes.text, setting)


def _pair(
    found: Sequence[Case], title: str, key: str, across: str, tick: Callable[[int], str], setting: Setting
) -> Iterator[Panel]:
    times: dict[str, list[tuple[float, float]]] = {}
    shares: dict[str, list[tuple[float, float]]] = {}
    for one in found:
        x = max(getattr(one, key), 1)
        times.setdefault(one.algorithm, []).append((x, one.prediction.seconds * 1e6))
        share = setting.efficiency(one.prediction)
        if share is not None:
            shares.setdefault(one.algorithm, []).append((x, 100 * share))
    yield Panel(title, across, "predicted time (us)", times, tick)
    if shares:
        alone = {one.ranks <= setting.topology.ranks_per_host for one in found}
        what = "bandwidth" if len(alone) > 1 else "a core's bandwidth" if True in alone else "the cards' bandwidth"
        yield Panel(title, across, f"efficiency: share of {what}", shares, tick, percent=True)


# --- training


def train(
    setting: Setting,
    counts: Sequence[int],
    gradients: Sequence[training.Gradient],
    compute: float,
    bucket: int,
    backward: float,
    scaling: str,
) -> tuple[list[Panel], dict[str, Any]]:
    """Prints a table of predicted times of a training step, for each number of ranks.

    `setting`: the settings of all simulations. `counts`: the numbers of ranks. `gradients`: sizes, in the order in
    which backpropagation computes them. The other arguments are options of `collectives simulate`. Returns diagrams of
    the times, and the times as a JSON object.
    """
    total = sum(gradient.nbytes for gradient in gradients)
    click.echo(f"{len(gradients)} gradients of {_bytes_text(total)}, {time_text(compute)} of computing on one rank")
    click.echo(f"scaling {scaling}, {setting.topology.ranks_per_host} a host, the fastest algorithm for each bucket")
    titles = " ".join(f"{title:>10}" for title in ("compute", "allreduce", "step"))
    click.echo(f"  {'ranks':>8} {titles} {'speed-up':>9} {'efficiency':>10}   {'not overlapped':>14} {'speed-up':>9}")
    curves: dict[str, list[tuple[float, float]]] = {"overlapped": [], "not overlapped": [], "ideal": []}
    steps = []
    for count in counts:
        share = compute / count if scaling == "strong" else compute
        scale = share / compute
        timed = [g if g.ready is None else training.Gradient(g.nbytes, g.ready * scale) for g in gradients]
        parts = training.buckets(timed, share, bucket, backward)
        one = training.step(parts, share, count, _allreduce(setting, count, [part.nbytes for part in parts]))
        with_, without = training.speedup(one, compute)
        steps.append({**asdict(one), "speedup": with_, "speedup_alone": without, "efficiency": with_ / count})
        columns = [f"{time_text(value):>10}" for value in (one.compute, one.communication, one.overlapped)]
        tail = f"{with_:>9.2f} {with_ / count:>10.0%}   {time_text(one.alone):>14} {without:>9.2f}"
        click.echo(f"  {count:>8} {' '.join(columns)} {tail}")
        for label, value in (("overlapped", with_), ("not overlapped", without), ("ideal", float(count))):
            curves[label].append((count, value))
    title = f"training step, {scaling} scaling"
    shares = {label: [(x, 100 * y / x) for x, y in line] for label, line in curves.items() if label != "ideal"}
    panels = [
        Panel(title, "ranks", "predicted speed-up", dict(curves)),
        Panel(title, "ranks", "efficiency: speed-up over ranks", shares, percent=True),
    ]
    return panels, {"scaling": scaling, "steps": steps}


def _allreduce(setting: Setting, ranks: int, wanted: Sequence[int]) -> Callable[[int], float]:
    """A function that takes one of the sizes `wanted`, in bytes, and returns the fastest algorithm's time in seconds.

    If there are more than `_EACH` sizes, some are simulated, and the times of the others are interpolated.
    """
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


def _fastest(setting: Setting, ranks: int, nbytes: int) -> float:
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
    """A time of `value` seconds as text with three significant digits, such as "12.5 us", "1.25 ms" or "3.00 s"."""
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
