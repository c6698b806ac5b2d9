"""Compares the library with other systems: runs the benchmark, and makes the table of targets reached and missed.

Invariant: a cell of the table is judged only by rounds in which all systems took turns and the machine stayed in one
mode (a state of cores and caches, see `ping`). All processes are started several times: a time depends noticeably on
the addresses of a process's pages, which stay the same while the process lives. A cell without results neither passes
nor fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any, Final

from collectives.bench.bars import Band, Line, Setting
from collectives.bench.cases import IN_PLACE, OUT_OF_PLACE
from collectives.bench.loop import quotients
from collectives.bench.ping import Reading, alike, mode
from collectives.bench.plan import PeerPlan, Plan
from collectives.bench.report import ABSENT

PASS, FAIL = "pass", "FAIL"
SHORTEST, LONGEST = 0.05, 1.0  # limits for the seconds of one figure
_BESIDES: Final = 0.35  # first estimate of the seconds that a figure takes beyond its budget, for checks and memory


@dataclass(frozen=True, slots=True)
class Size:
    """The comparison of this library with others for one collective at one message size.

    `ratio` is this library's time divided by the time of `best`, the fastest other library. `bar` is the target, the
    largest accepted ratio. `mode` is "near" if the cores share a cache, "far" if not. `rounds` is the number of rounds
    of measurement. `set_aside` of these rounds do not count: the machine was faster or slower than in most rounds.
    """

    nbytes: int
    ratio: float
    best: str
    mode: str
    bar: float
    rounds: int
    set_aside: int


@dataclass(frozen=True, slots=True)
class Cell:
    """The comparison of this library with others for one collective and a range of message sizes.

    `line` has the collective and its targets, `band` the range. `sizes` has the comparison at each size; it is empty if
    nothing could be compared.
    """

    line: Line
    band: Band
    sizes: tuple[Size, ...]

    @property
    def worst(self) -> Size:
        return max(self.sizes, key=lambda size: size.ratio / size.bar)

    @property
    def median(self) -> float:
        return median(size.ratio for size in self.sizes)

    @property
    def verdict(self) -> str:
        if not self.sizes:
            return ABSENT
        return PASS if all(size.ratio <= size.bar for size in self.sizes) else FAIL


def cells(line: Line, documents: Sequence[dict[str, Any]]) -> list[Cell]:
    """Compare this library with others for the collective in `line`; return one result for each range of message sizes.

    `documents` are the JSON documents that the benchmark has written for this collective.
    """
    found: dict[int, list[dict[str, Any]]] = {}
    for result in (r for document in documents for r in document["results"]):
        if result["collective"] == line.collective:
            found.setdefault(result["bytes"], []).append(result)
    reported = []
    for number, band in enumerate(line.bands):
        inside = [_size(line, number, n, found[n]) for n in sorted(found) if band.first <= n <= band.last]
        reported.append(Cell(line, band, tuple(size for size in inside if size is not None)))
    return reported


def _size(line: Line, band: int, nbytes: int, launches: Sequence[dict[str, Any]]) -> Size | None:
    pings = [(Reading(**before), Reading(**after)) for r in launches for before, after in r["pings"]]
    kept = alike(pings)
    ratios = {}
    for name in line.against:
        rounds = [q for result in launches for q in _quotients(result, name)]
        if known := [q for q in (rounds[i] for i in kept) if q is not None]:
            ratios[name] = median(known)
    if not ratios:
        return None
    best = max(ratios, key=lambda name: ratios[name])
    where = mode([pings[i] for i in kept]) if line.ranks == 2 else ""
    bar = line.near[band] if line.near and where == "near" else line.bars[band]
    return Size(nbytes, ratios[best], best, where, bar, len(pings), len(pings) - len(kept))


def _quotients(result: dict[str, Any], name: str) -> list[float | None]:
    """For each round, our median time divided by that of system `name`.

    None for all rounds if we or that system have no times, or if that system's results were wrong.
    """
    measurements = result["measurements"]
    ours = next((m for place in (OUT_OF_PLACE, IN_PLACE) if "rounds" in (m := measurements.get(place, {}))), None)
    theirs = measurements.get(name, {})
    if ours is None or "rounds" not in theirs or theirs["wrong"]:
        return [None] * len(result["pings"])
    return [*quotients(ours["rounds"], theirs["rounds"])]


@dataclass(frozen=True, slots=True)
class Session:
    """Runs the benchmark until this library has been compared with other libraries for each of `lines`.

    Each of `lines` has a collective and its targets. A target is the largest accepted ratio: this library's time,
    divided by another library's time.

    `run(plan, ranks)` runs the benchmark once, and returns its JSON document, or None if it failed. All processes are
    started `launches` times, each time for `rounds` rounds of measurement. `budget` is the time for everything, in
    seconds. `pythons` has the Python interpreter for each other library, by name. `say` is called with messages for the
    user. If `renew`, ranks write their input again before each call.
    """

    lines: tuple[Line, ...]
    budget: float
    launches: int
    rounds: int
    pythons: dict[str, str]
    run: Callable[[Plan, int], dict[str, Any] | None]
    say: Callable[[str], None]
    renew: bool = False

    def plan(self, setting: Setting, seconds: float) -> Plan:
        mine = [line for line in self.lines if line.setting == setting]
        peers = dict.fromkeys(name for line in mine for name in line.against)
        return Plan(
            collectives=tuple(dict.fromkeys(line.collective for line in mine)),
            sizes=tuple(size for band in max((line.bands for line in mine), key=len) for size in band.sizes),
            places=(OUT_OF_PLACE, IN_PLACE),
            usual=True,
            buffers=setting.buffers,
            renew=self.renew and setting.row == 1,
            row=setting.row,
            transport=setting.transport,
            budget=seconds,
            rounds=self.rounds,
            peers=tuple(PeerPlan(name, self.pythons[name]) for name in peers),
        )

    def documents(self) -> dict[Setting, list[dict[str, Any]]]:
        """Run the benchmark for all settings that the comparison of libraries needs.

        Return the JSON documents of the runs that succeeded, by setting. A setting is a transport, a kind of arrays, a
        number of ranks, and a number of calls without a barrier between them.
        """
        found: dict[Setting, list[dict[str, Any]]] = {}
        runs = list(product(range(self.launches), dict.fromkeys(line.setting for line in self.lines)))
        end = time.monotonic() + self.budget
        besides: dict[Setting, float] = {}  # measured seconds that a figure takes beyond its budget
        for number, (_, setting) in enumerate(runs):
            left = [(figures(self.plan(s, 1.0)), besides.get(s, _BESIDES)) for _, s in runs[number:]]
            for_them = end - time.monotonic() - sum(count * cost for count, cost in left)
            seconds = min(LONGEST, max(SHORTEST, for_them / sum(count for count, _ in left)))
            plan = self.plan(setting, seconds)
            self.say(f"{setting} ({number + 1} of {len(runs)}): {figures(plan)} figures of {seconds:.2f} s")
            start = time.monotonic()
            document = self.run(plan, setting.ranks)
            if document is None:
                continue
            found.setdefault(setting, []).append(document)
            besides[setting] = max(0.0, (time.monotonic() - start) / figures(plan) - seconds)
        return found


def figures(plan: Plan) -> int:
    """Return how many measurements `plan` makes: one for each library, collective and size."""
    return len(plan.collectives) * len(plan.sizes) * (1 + len(plan.peers))
