"""Schedules as pictures: a lane for each rank, time downwards, an arrow for each message.

Invariant: matplotlib is needed only here, and only when something is drawn.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from collectives.schedule.form import OUT, SCRATCH, Chunk, Copy, Recv, Reduce, Schedule, Send, Step
from collectives.schedule.group import Group
from collectives.schedule.play import Play
from collectives.schedule.text import chunk_text, step_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Inches.
_LANE = 1.6  # between ranks
_LINE = 0.19  # between steps of one rank in one round
_FLIGHT = 0.62  # between the last departure of a round and the first arrival
_MARGIN = 0.16  # above and below what happens in a round


@dataclass(frozen=True, slots=True)
class _Row:
    """One round: the steps that send and the others, by rank, and how far down the page it reaches."""

    leaving: tuple[tuple[int, ...], ...]
    arriving: tuple[tuple[int, ...], ...]

    @property
    def lines(self) -> tuple[int, int]:
        """How many lines its departures and its arrivals need."""
        return max(map(len, self.leaving)), max(map(len, self.arriving))

    @property
    def height(self) -> float:
        leaving, arriving = self.lines
        return _LINE * (leaving + arriving) + _FLIGHT * (leaving > 0) + 2 * _MARGIN * (leaving + arriving > 0)


def draw(schedules: Sequence[Schedule], file: str | os.PathLike[str], *, in_place: bool = False) -> None:
    """Draw a group's schedules into a file, whose suffix says in which format (.svg, .png, .pdf).

    Every row is a round: its messages can all be under way at the same time. What a rank sends stands to the
    left of its lane, what it gets and computes to the right. Colours tell blocks apart.
    ImportError without matplotlib; VerificationError if the schedules do not fit together.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("drawing needs matplotlib: pip install 'pycollectives[plot]'") from None
    group = Group(schedules)
    rows = _rows(group, Play(group, in_place).rounds())
    bottoms = list(accumulate(row.height for row in rows))
    width = max(5.5, _LANE * len(schedules) + 0.8)
    figure = Figure(figsize=(width, bottoms[-1] + 1.2), layout="constrained")
    axes = figure.add_subplot()
    _lanes(axes, schedules[0], bottoms)
    places: dict[int, tuple[float, float]] = {}
    for row, bottom in zip(rows, bottoms, strict=True):
        _place(row, bottom, places)
    for number, place in places.items():
        _step(axes, group, number, place)
        for giver in group.givers[number]:
            _arrow(axes, _colour(group.schedules[group.rank_of[giver]], group.sent(giver)), places[giver], place)
    _legend(axes)
    figure.savefig(file, dpi=130)


def _rows(group: Group, rounds: Sequence[int]) -> list[_Row]:
    """The rounds from round 0, which has no messages, on. What only computes comes after what arrives."""
    last = max(rounds, default=0)
    steps: list[list[list[int]]] = [[[] for _ in group.schedules] for _ in range(last + 1)]
    for number, rank in enumerate(group.rank_of):
        steps[rounds[number]][rank].append(number)
    rows = []
    for ranks in steps:
        leaving = tuple(tuple(n for n in numbers if group.takers[n]) for numbers in ranks)
        others = [[n for n in numbers if not group.takers[n]] for numbers in ranks]
        arriving = tuple(tuple(sorted(numbers, key=lambda n: not group.givers[n])) for numbers in others)
        rows.append(_Row(leaving, arriving))
    return rows


def _place(row: _Row, bottom: float, places: dict[int, tuple[float, float]]) -> None:
    """Where on the page each step of a round happens."""
    for rank, numbers in enumerate(row.leaving):
        for i, number in enumerate(numbers):
            places[number] = (rank, bottom - row.height + _MARGIN + _LINE * (i + 0.5))
    for rank, numbers in enumerate(row.arriving):
        for i, number in enumerate(numbers):
            places[number] = (rank, bottom - _MARGIN - _LINE * (row.lines[1] - i - 0.5))


def _lanes(axes: Axes, schedule: Schedule, bottoms: Sequence[float]) -> None:
    root = f", root {schedule.root}" if schedule.root else ""
    axes.set_title(f"{schedule.collective} {schedule.algorithm}, {schedule.size} ranks{root}", pad=10)
    axes.set_xlim(-0.45, schedule.size - 0.35)
    axes.set_ylim(bottoms[-1] + 0.05, -0.05)
    axes.set_xticks(range(schedule.size), [f"rank {r}" for r in range(schedule.size)])
    middles = [(top + bottom) / 2 for top, bottom in pairwise(bottoms)]
    axes.set_yticks(middles, [f"round {r + 1}" for r in range(len(middles))])
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    for side in axes.spines.values():
        side.set_visible(False)
    for rank in range(schedule.size):
        axes.axvline(rank, color="0.7", linewidth=1, zorder=0)
    for top, bottom in list(pairwise(bottoms))[::2]:
        axes.axhspan(top, bottom, color="0.96", zorder=-1)


def _step(axes: Axes, group: Group, number: int, place: tuple[float, float]) -> None:
    step, schedule = group.steps[number], group.schedules[group.rank_of[number]]
    chunk = step.chunk if isinstance(step, Recv | Send) else step.dst
    colour = _colour(schedule, chunk)
    # Arrows go down from where they leave and come from above: labels keep clear of them.
    sending = isinstance(step, Send)
    x, y = place[0] + (-0.06 if sending else 0.07), place[1] + (-0.01 if sending else 0.035)
    label = step_text(step).removeprefix("copy ") if isinstance(step, Copy) else chunk_text(chunk)
    axes.plot(*place, **_mark(step), color=colour, markeredgecolor=colour, zorder=4)
    axes.text(
        x,
        y,
        label,
        fontsize=7.5,
        ha="right" if sending else "left",
        va="bottom" if sending else "center_baseline",
        color=colour,
        zorder=3,
        bbox={"boxstyle": "square,pad=0.08", "facecolor": "white", "edgecolor": "none", "alpha": 0.75},
    )


def _arrow(axes: Axes, colour: str, start: tuple[float, float], end: tuple[float, float]) -> None:
    style = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 4}
    axes.annotate("", xy=end, xytext=start, arrowprops=style, zorder=5)


def _mark(step: Step) -> dict[str, Any]:
    if isinstance(step, Send):
        return {"marker": ".", "markersize": 5}
    if isinstance(step, Recv):
        return {"marker": "o", "markersize": 7, "markerfacecolor": "white"}
    if isinstance(step, Copy):
        return {"marker": "s", "markersize": 6, "markerfacecolor": "white"}
    return {"marker": "*", "markersize": 11} if step.final else {"marker": "P", "markersize": 8}


def _legend(axes: Axes) -> None:
    chunk = Chunk(OUT)
    kinds: dict[str, Step] = {
        "receive": Recv(0, chunk),
        "reduce": Reduce(chunk, ()),
        "reduce: now complete": Reduce(chunk, (), final=True),
        "copy": Copy(chunk, chunk),
    }
    for name, step in kinds.items():
        axes.plot([], [], **_mark(step), color="0.25", markeredgecolor="0.25", linestyle="none", label=name)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=4, frameon=False, fontsize=8)


def _colour(schedule: Schedule, chunk: Chunk) -> str:
    """A colour for the first block; a block of scratch has that of the block whose size it has."""
    if chunk.count == 0:
        return "0.4"
    block = chunk.first
    if chunk.buffer >= SCRATCH:
        block = schedule.scratch[chunk.buffer - SCRATCH][chunk.first][1]
    return f"C{block % 10}"
