"""Prints the benchmark's table of results, line by line.

Invariant: without a terminal the output is plain text with columns of fixed width. Comment lines begin with "#". Each
case is one line; its fields are separated by spaces, contain no spaces, and are never empty: a missing value is "N/A".
On a terminal the text is the same, with colours.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Final

from rich.console import Console
from rich.text import Text

from collectives.bench import sizes
from collectives.bench.cases import IN_PLACE, OUT_OF_PLACE, Case
from collectives.bench.hosts import Group
from collectives.bench.measure import Measurement, Row
from collectives.bench.ping import Reading, mode
from collectives.bench.plan import Plan

ABSENT: Final = "N/A"

Versions = Mapping[str, Mapping[str, str]]  # by system, the versions of its packages


@dataclass(frozen=True, slots=True)
class Screen:
    """How the benchmark prints its results.

    `colour` and `progress` tell whether the terminal can show colours and a line with the progress. `table` tells
    whether to print results at all.
    """

    colour: bool = False
    progress: bool = False
    table: bool = True

    def console(self) -> Console:
        """Return a `Console` of the package rich that prints to the standard output and does not wrap lines."""
        return Console(
            force_terminal=self.colour, no_color=not self.colour, width=1000, highlight=False, soft_wrap=True
        )


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    unit: str
    width: int
    group: str = ""  # the heading above this column and its neighbours


class Table:
    """Prints the results of one run of the benchmark as a table, with one line for each measurement.

    The table goes to the standard output.
    """

    def __init__(self, plan: Plan, screen: Screen, todo: Sequence[Case]) -> None:
        self._plan: Final = plan
        self._console: Final = screen.console() if screen.table else None
        self._progress: Final = Progress(screen.progress)
        self._columns: Final = _columns(plan, max(18, *(len(case.algorithm) for case in todo)))
        self._busbws: list[float] = []
        self._wrong = 0
        self._begun = False
        self._pings: list[tuple[Reading, Reading]] = []
        self._set_aside = 0
        self._ratios: dict[str, list[tuple[float, int]]] = {}  # by system: our time over its time, and the size
        self._total: Final = len(todo)
        self._done = 0
        self._start: Final = time.monotonic()

    def head(self, title: str, group: Group, peers: Versions, started: datetime) -> None:
        """Print the heading `title` and the names of the columns of the table of results.

        Before the first heading, also print versions, hosts and options. `group` has the properties of all ranks and
        hosts, `peers` the versions of other libraries. `started` is the time at which the benchmark began.
        """
        self._progress.clear()
        for line in () if self._begun else _preamble(self._plan, group, peers, started):
            self._print(Text("# " + line, style="dim"))
        self._begun = True
        self._print(Text("#"))
        self._print(Text("# " + title, style="bold"))
        self._print(Text("# " + self._groups(), style="bold"))
        for lines in (tuple(c.title for c in self._columns), tuple(c.unit for c in self._columns)):
            text = " ".join(f"{name:>{c.width}}" for name, c in zip(lines, self._columns, strict=True))
            self._print(Text("# " + text, style="bold"))

    def row(self, row: Row) -> None:
        self._progress.clear()
        self._done += 1
        self._pings += row.pings
        self._set_aside += len(row.set_aside)
        text = Text("  ")
        for column, (value, style) in zip(self._columns, self._fields(row), strict=True):
            text.append(f"{value:>{column.width}} ", style)
        self._print(text)
        for found in row.others:
            if found.unsupported:
                self._print(Text(f"# {found.contestant}: {' '.join(found.unsupported.split())}", style="dim"))

    def foot(self, seconds: float) -> None:
        self._progress.clear()
        if not self._plan.check:
            self._print(Text("# Wrong values         : not checked", style="yellow"))
        else:
            style = "bold red" if self._wrong else "green"
            self._print(
                Text(f"# Wrong values         : {self._wrong} {'FAILED' if self._wrong else 'OK'}", style=style)
            )
        mean = sum(self._busbws) / len(self._busbws) if self._busbws else 0.0
        self._print(Text(f"# Average bus bandwidth: {mean:.3f} GB/s"))
        for line in self._modes():
            self._print(Text(f"# {line}"))
        for name, ratios in self._ratios.items():
            worst, size = max(ratios)
            typical = math.exp(sum(math.log(quotient) for quotient, _ in ratios) / len(ratios))
            if name in self._plan.limits:
                summary = f"geometric mean {100 / typical:.1f} %, at least {100 / worst:.1f} % (at {sizes.text(size)})"
            else:
                summary = f"geometric mean {typical:.3f}, at most {worst:.3f} (at {sizes.text(size)})"
            what = f"share of {name}" if name in self._plan.limits else f"ours/{name}"
            self._print(Text(f"# {what:21}: {summary}"))
        self._print(Text(f"# Took                 : {seconds:.1f} s", style="dim"))

    def note(self, case: Case, what: str) -> None:
        """Show what is being measured now, on a terminal only: the collective `case` and the current step `what`."""
        title = case.trace or case.collective
        call = f"{title} {sizes.text(case.nbytes)} {case.dtype} {case.algorithm}: {what}"
        self._progress.show(f"{remaining(self._done, self._total, time.monotonic() - self._start)}  {call}")

    def close(self) -> None:
        self._progress.clear()

    def _modes(self) -> list[str]:
        """Lines for the end of the table about the machine's modes, that is states of different speed (see `ping`)."""
        readings = [reading for pair in self._pings for reading in pair]
        summary = []
        for name, what, unit in (
            ("flag", f"Ping, by flag, {mode(self._pings)}", "us one way"),
            ("link", "Ping, by link", "us one way"),
            ("core", "Cores, by a loop", "us"),
        ):
            times = [t for t in (getattr(reading, name) for reading in readings) if t is not None]
            if times:
                low, middle, high = (microseconds(t) for t in (min(times), median(times), max(times)))
                summary.append(f"{what:21}: {middle} {unit} ({low} to {high})")
        if self._ratios:
            summary.append(
                f"Rounds set aside     : {self._set_aside} of {len(self._pings)}, in another mode than their neighbours"
            )
        return summary

    def _groups(self) -> str:
        """The line above the columns' names."""
        line, start = "", 0
        for number, column in enumerate(self._columns):
            if column.group and (not number or self._columns[number - 1].group != column.group):
                width = sum(c.width + 1 for c in self._columns if c.group == column.group) - 1
                line = f"{line:{start}}{column.group:^{width}}"
            start += column.width + 1
        return line.rstrip()

    def _fields(self, row: Row) -> list[tuple[str, str]]:
        case = row.case
        fields = [
            (str(case.nbytes), "bold"),
            (str(case.count), ""),
            (case.dtype, ""),
            (case.op, ""),
            (str(case.root), ""),
            (row.algorithm, ""),
        ]
        for place in (OUT_OF_PLACE, IN_PLACE):
            fields += self._ours(case, row.measurements.get(place))
        for theirs in row.others:
            fields += self._theirs(row, theirs)
        return fields

    def _ours(self, case: Case, found: Measurement | None) -> list[tuple[str, str]]:
        if found is None or found.unsupported:
            return [(ABSENT, "dim")] * 4
        seconds = found.times.median
        self._busbws.append(case.busbw(seconds))
        self._wrong += found.wrong or 0
        wrong = (ABSENT, "dim") if found.wrong is None else (str(found.wrong), "bold red" if found.wrong else "green")
        return [
            (microseconds(seconds), "cyan"),
            (f"{case.algbw(seconds):.2f}", ""),
            (f"{case.busbw(seconds):.2f}", ""),
            wrong,
        ]

    def _theirs(self, row: Row, theirs: Measurement) -> list[tuple[str, str]]:
        if theirs.unsupported:
            return [(ABSENT, "dim")] * 2
        quotient = row.ratio(theirs)
        self._ratios.setdefault(theirs.contestant, []).append((quotient, row.case.nbytes))
        if theirs.contestant in self._plan.limits:
            return [(microseconds(theirs.times.median), ""), (f"{100 / quotient:.1f}", "dim")]
        style = "green" if quotient <= 1 else "red"
        marked = "!" if theirs.wrong else ""  # the other system's results are wrong: the comparison means nothing
        return [(microseconds(theirs.times.median) + marked, ""), (f"{quotient:.3f}", style)]

    def _print(self, line: Text) -> None:
        if self._console is None:
            return
        line.rstrip()
        self._console.print(line)
        sys.stdout.flush()


class Progress:
    """A line on the standard error that shows the current step and is erased at the end.

    Without a terminal, nothing is shown.
    """

    def __init__(self, wanted: bool) -> None:
        self._wanted: Final = wanted
        self._shown = False

    def show(self, text: str) -> None:
        if self._wanted:
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False


def remaining(done: int, total: int, seconds: float) -> str:
    """Return a text such as "3 of 8, about 40 s left", if `done` of `total` steps have taken `seconds` so far."""
    where = f"{min(done + 1, total)} of {total}"
    if done == 0:
        return where
    left = seconds / done * (total - done)
    return f"{where}, about {left / 60:.0f} min left" if left >= 90 else f"{where}, about {left:.0f} s left"


def microseconds(seconds: float) -> str:
    """Return `seconds` as text, in microseconds, rounded as nccl-tests does.

    There are two decimals below 100 us, one below 10000 us, and none above.
    """
    value = seconds * 1e6
    decimals = 2 if value < 100 else 1 if value < 10000 else 0
    return f"{value:.{decimals}f}"


def _columns(plan: Plan, longest: int) -> list[_Column]:
    columns = [
        _Column("size", "(B)", 12),
        _Column("count", "(elements)", 12),
        _Column("type", "", 10),
        _Column("redop", "", 6),
        _Column("root", "", 5),
        _Column("algorithm", "", longest),
    ]
    for place in (OUT_OF_PLACE, IN_PLACE):
        columns += [
            _Column("time", "(us)", 9, place),
            _Column("algbw", "(GB/s)", 7, place),
            _Column("busbw", "(GB/s)", 7, place),
            _Column("#wrong", "", 6, place),
        ]
    for name in plan.limits:
        columns += [_Column(name, "(us)", 9), _Column("share", "(%)", 6)]
    for peer in plan.peers:
        columns += [
            _Column(peer.name, "(us)", max(10, len(peer.name))),
            _Column(f"ours/{peer.name}", "", len(peer.name) + 6),
        ]
    return columns


def _preamble(plan: Plan, group: Group, peers: Versions, started: datetime) -> list[str]:
    facts = group.ranks[0]
    pairs = ", ".join(f"{kind} ({number} pair{'s' * (number != 1)})" for kind, number in sorted(group.pairs.items()))
    segments = f", segments of {sizes.text(plan.segment)}" if plan.segment else ""
    renewed = ", written anew before each call" if plan.renew else ""
    lines = [
        f"pycollectives {facts.pycollectives} bench, {started.isoformat(' ', 'seconds')}",
        f"ranks {len(group.ranks)}, transport {pairs or 'none'}, buffers {plan.buffers}{renewed}{segments}",
    ]
    for host, ranks in group.hosts:
        quota = f", quota {host.quota:g} cores" if host.quota else ""
        crowd = "ranks outnumber cores" if host.outnumbered else "a core for each rank"
        masks = sorted({facts.affinity for facts in group.ranks if facts.machine == host.machine})
        if len(masks) == 1:
            cores = f"{host.cores} core{'s' * (host.cores != 1)} (affinity {host.affinity}{quota})"
        else:
            cores = f"cores of their own (affinities {' '.join(masks)}{quota})"
        lines.append(
            f"host {host.host}: {ranks} rank{'s' * (ranks != 1)}, {cores}, {crowd}; "
            f"{host.processor}, {host.features[-1] if host.features else 'no SIMD'}, {host.kernel}"
        )
    for device, count in Counter(facts.device for facts in group.ranks if facts.device).items():
        lines.append(f"{count} rank{'s' * (count != 1)} on {device}")
    lines.append(f"python {facts.python}, numpy {facts.numpy}, ml_dtypes {facts.ml_dtypes}")
    for name, versions in peers.items():
        lines.append(f"{name}: {', '.join(f'{package} {version}' for package, version in versions.items()) or 'none'}")
    took = f"{plan.iterations} iterations" if plan.iterations else f"as many iterations as fit into {plan.budget:g} s"
    turns = f" in {plan.rounds} rounds" if plan.rounds > 1 else ""
    row = f" of {plan.row} calls in a row, of each the mean," if plan.row > 1 else ""
    took += row + turns
    waited = "" if plan.device == "cpu" else "; it ends when the rank's stream is empty"
    lines.append(f"time: median over {took} of the slowest rank's, barrier not included{waited}; warm-up {plan.warmup}")
    return lines
