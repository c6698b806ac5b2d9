"""The comparison with other systems: runs of the benchmark, and the table of bars from their results.

Invariant: a cell is judged by rounds in which the systems took turns, inside one mode of the machine, in processes
that were started several times: where their pages lie changes a figure by more than a bar leaves, and stays the same
while they live. A cell without figures is neither passed nor failed.
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
SHORTEST, LONGEST = 0.05, 1.0  # seconds for a figure
_BESIDES: Final = 0.35  # seconds that a figure costs beyond its budget, until there is experience: checks, memory


@dataclass(frozen=True, slots=True)
class Size:
    """One size: the ratio to the best of the others, and the bar that counts in the mode it was measured in.

    `set_aside`: how many of the `rounds` were in another mode than most.
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
    """One band of one line. `sizes` is empty if nothing could be compared."""

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
    """The line's cells, from the results of its runs."""
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
    """Our time over theirs in each round, of the medians; None if it had none, or was wrong."""
    measurements = result["measurements"]
    ours = next((m for place in (OUT_OF_PLACE, IN_PLACE) if "rounds" in (m := measurements.get(place, {}))), None)
    theirs = measurements.get(name, {})
    if ours is None or "rounds" not in theirs or theirs["wrong"]:
        return [None] * len(result["pings"])
    return [*quotients(ours["rounds"], theirs["rounds"])]


@dataclass(frozen=True, slots=True)
class Session:
    """All runs of one table. `run` measures a plan with so many ranks, and returns the document, or None.

    `launches`: how often all processes are started, each time for so many `rounds`. `budget`: seconds for everything.
    `say`: called with messages for the user. `renew` as in a plan.
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
        """Measure everything; a run that failed has no document."""
        found: dict[Setting, list[dict[str, Any]]] = {}
        runs = list(product(range(self.launches), dict.fromkeys(line.setting for line in self.lines)))
        end = time.monotonic() + self.budget
        besides: dict[Setting, float] = {}  # as measured, seconds that a figure costs beyond its budget
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
    """How many systems are measured on how many cases."""
    return len(plan.collectives) * len(plan.sizes) * (1 + len(plan.peers))
