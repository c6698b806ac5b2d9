"""Where the library stands beside other systems: runs of the benchmark, and the table of bars made of them.

Invariant: a cell is judged by what was measured in one run, in rounds in which the systems took turns, inside one
mode of the machine; a cell without figures is neither passed nor failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from bench.bars import BANDS, Band, Line, Setting
from bench.cases import IN_PLACE, OUT_OF_PLACE
from bench.ping import Reading, mode
from bench.plan import PeerPlan, Plan
from bench.report import ABSENT

PASS, FAIL = "pass", "FAIL"
SHORTEST, LONGEST = 0.05, 1.0  # seconds for a figure
_BESIDES: Final = 0.35  # seconds that a figure costs beyond its budget, until there is experience: checks, memory


@dataclass(frozen=True, slots=True)
class Size:
    """One size: the ratio to the best of the others, and the bar that counts in the mode it was measured in."""

    nbytes: int
    ratio: float
    best: str
    mode: str
    bar: float


@dataclass(frozen=True, slots=True)
class Cell:
    """One band of one line. `sizes` is empty where nothing could be compared."""

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


def cells(line: Line, document: dict[str, Any]) -> list[Cell]:
    """The line's cells, from what a run has left."""
    found = [r for r in document["results"] if r["collective"] == line.collective]
    told = []
    for number, band in enumerate(BANDS):
        inside = [_size(line, number, r) for r in found if band.first <= r["bytes"] <= band.last]
        told.append(Cell(line, band, tuple(size for size in inside if size is not None)))
    return told


def _size(line: Line, band: int, result: dict[str, Any]) -> Size | None:
    ratios = {}
    for name in line.against:
        theirs = result["measurements"].get(name, {})
        if "ours_over_this" in theirs and not theirs["wrong"]:
            ratios[name] = float(theirs["ours_over_this"])
    if not ratios:
        return None
    best = max(ratios, key=lambda name: ratios[name])
    pings = [(Reading(**before), Reading(**after)) for before, after in result["pings"]]
    kept = [pair for i, pair in enumerate(pings) if i not in result["set_aside"]]
    where = mode(kept) if line.ranks == 2 else ""
    bar = line.near[band] if line.near and where == "near" else line.bars[band]
    return Size(result["bytes"], ratios[best], best, where, bar)


@dataclass(frozen=True, slots=True)
class Session:
    """All runs of one table. `run` measures a plan with so many ranks, and gives the document, or None.

    `budget`: seconds for everything. `say`: tell somebody who waits. `renew` as in a plan.
    """

    lines: tuple[Line, ...]
    budget: float
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
            sizes=tuple(size for band in BANDS for size in band.sizes),
            places=(OUT_OF_PLACE, IN_PLACE),
            usual=True,
            buffers=setting.buffers,
            renew=self.renew,
            transport=setting.transport,
            budget=seconds,
            rounds=self.rounds,
            peers=tuple(PeerPlan(name, self.pythons[name]) for name in peers),
        )

    def documents(self) -> dict[Setting, dict[str, Any]]:
        """Measure everything."""
        found: dict[Setting, dict[str, Any]] = {}
        settings = list(dict.fromkeys(line.setting for line in self.lines))
        end = time.monotonic() + self.budget
        besides = _BESIDES
        for number, setting in enumerate(settings):
            left = sum(figures(self.plan(s, 1.0)) for s in settings[number:])
            seconds = min(LONGEST, max(SHORTEST, (end - time.monotonic()) / left - besides))
            plan = self.plan(setting, seconds)
            self.say(f"{setting} ({number + 1} of {len(settings)}): {figures(plan)} figures of {seconds:.2f} s")
            start = time.monotonic()
            document = self.run(plan, setting.ranks)
            if document is None:
                continue
            found[setting] = document
            besides = max(0.0, (time.monotonic() - start) / figures(plan) - seconds)
        return found


def figures(plan: Plan) -> int:
    """How many systems are measured on how many cases."""
    return len(plan.collectives) * len(plan.sizes) * (1 + len(plan.peers))
