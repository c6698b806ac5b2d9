"""Schedules as pictures: a column for each rank, time downwards, an arrow for each message.

Invariant: matplotlib is needed only here, and only when something is drawn.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, Any, Final

from collectives.base.plotting import require
from collectives.schedule.form import IN, OUT, SCRATCH, Chunk, Copy, Recv, Reduce, Schedule, Send, Step
from collectives.schedule.group import Group
from collectives.schedule.layout import Layout
from collectives.schedule.play import Play
from collectives.schedule.text import chunk_text, step_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEW: Final = 8  # ranks whose labels are written out; with more, labels are short and columns narrow

# Inches.
_WIDE, _NARROW = 1.6, 0.95  # between ranks, of few and of many
_LINE = 0.19  # between steps of one rank in one round
_FLIGHT = 0.62  # between the last departure of a round and the first arrival
_MARGIN = 0.16  # above and below the steps of a round

# Okabe and Ito's colours without yellow: distinguishable with colour blindness, and readable as text on white.
_PALETTE: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#7f7f7f")
_HOSTS: Final = ("#dfe9f5", "#f6ead8")  # backgrounds of columns, alternating between hosts


@dataclass(frozen=True, slots=True)
class _Row:
    """One round, drawn as one row: the step numbers of each rank's sends (`leaving`) and other steps (`arriving`)."""

    leaving: tuple[tuple[int, ...], ...]
    arriving: tuple[tuple[int, ...], ...]

    @property
    def lines(self) -> tuple[int, int]:
        """How many lines of text this row of the picture needs for sends, and how many for the other steps."""
        return max(map(len, self.leaving)), max(map(len, self.arriving))

    @property
    def height(self) -> float:
        leaving, arriving = self.lines
        return _LINE * (leaving + arriving) + _FLIGHT * (leaving > 0) + 2 * _MARGIN * (leaving + arriving > 0)


@dataclass(frozen=True, slots=True)
class _Look:
    """The style of one picture. `lane`: inches between the columns of two ranks; `font`: text size in points."""

    lane: float
    font: float
    short: bool
    layout: Layout | None

    def between_hosts(self, sender: int, receiver: int) -> bool:
        return self.layout is not None and self.layout.hosts[sender] != self.layout.hosts[receiver]


def draw(
    schedules: Sequence[Schedule],
    file: str | os.PathLike[str],
    *,
    in_place: bool = False,
    layout: Layout | None = None,
) -> None:
    """Draw the steps of all ranks into a picture, in the format that the suffix of `file` names (.svg, .png, .pdf).

    `schedules` has one list of steps for each rank. Every row of the picture is a round: its messages can all be in
    progress at the same time. Every column is a rank, with the data that it sends on the left, and the data that it
    receives or computes on the right. Colours distinguish blocks of data.

    If `layout` has several hosts, and several ranks on a host, each host's columns have a coloured background with its
    name. Messages between hosts are then drawn thick. `in_place`: the input and output buffers are the same memory.
    Raises ImportError without matplotlib, and VerificationError if the schedules deadlock or a send has no receive.
    """
    require()
    from matplotlib.figure import Figure

    group = Group(schedules)
    rows = _rows(group, Play(group, in_place).rounds())
    bottoms = list(accumulate(row.height for row in rows))
    few = len(schedules) <= _FEW
    look = _Look(
        _WIDE if few else _NARROW,
        7.5 if few else 9.0,
        not few,
        layout if layout is not None and layout.nested else None,
    )
    width = max(5.5, look.lane * len(schedules) + 0.8)
    figure = Figure(figsize=(width, bottoms[-1] + 1.4), layout="constrained")
    axes = figure.add_subplot()
    _lanes(axes, schedules[0], bottoms, look)
    places: dict[int, tuple[float, float]] = {}
    for row, bottom in zip(rows, bottoms, strict=True):
        _place(row, bottom, places)
    for number, place in places.items():
        _step(axes, group, number, place, look)
        for send in group.sends[number]:
            colour = _colour(group.schedules[group.rank_of[send]], group.sent(send))
            far = look.between_hosts(group.rank_of[send], group.rank_of[number])
            _arrow(axes, colour, places[send], place, 1.9 if far else 1.0)
    _legend(axes, look)
    figure.savefig(file, dpi=130)


def _rows(group: Group, rounds: Sequence[int]) -> list[_Row]:
    """The picture's rows, one for each round; round 0 has no messages. In a row, local steps come after receives."""
    last = max(rounds, default=0)
    steps: list[list[list[int]]] = [[[] for _ in group.schedules] for _ in range(last + 1)]
    for number, rank in enumerate(group.rank_of):
        steps[rounds[number]][rank].append(number)
    rows = []
    for ranks in steps:
        leaving = tuple(tuple(n for n in numbers if group.receives[n]) for numbers in ranks)
        others = [[n for n in numbers if not group.receives[n]] for numbers in ranks]
        arriving = tuple(tuple(sorted(numbers, key=lambda n: not group.sends[n])) for numbers in others)
        rows.append(_Row(leaving, arriving))
    return rows


def _place(row: _Row, bottom: float, places: dict[int, tuple[float, float]]) -> None:
    """Add the coordinates of each step of `row` to `places`; `bottom` is the lower edge of the row."""
    for rank, numbers in enumerate(row.leaving):
        for i, number in enumerate(numbers):
            places[number] = (rank, bottom - row.height + _MARGIN + _LINE * (i + 0.5))
    for rank, numbers in enumerate(row.arriving):
        for i, number in enumerate(numbers):
            places[number] = (rank, bottom - _MARGIN - _LINE * (row.lines[1] - i - 0.5))


def _lanes(axes: Axes, schedule: Schedule, bottoms: Sequence[float], look: _Look) -> None:
    root = f", root {schedule.root}" if schedule.root else ""
    hosts = f" on {len(look.layout.members)} hosts" if look.layout else ""
    title = f"{schedule.collective} {schedule.algorithm}, {schedule.size} ranks{hosts}{root}"
    axes.set_title(title, pad=2.6 * look.font + 22 if look.layout else 10, fontsize=look.font + 4.5)
    axes.set_xlim(-0.55, schedule.size - 0.35)
    axes.set_ylim(bottoms[-1] + 0.05, -0.05)
    axes.set_xticks(range(schedule.size), [f"rank {r}" for r in range(schedule.size)], fontsize=look.font + 2)
    middles = [(top + bottom) / 2 for top, bottom in pairwise(bottoms)]
    axes.set_yticks(middles, [f"round {r + 1}" for r in range(len(middles))], fontsize=look.font + 2)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    for side in axes.spines.values():
        side.set_visible(False)
    for rank in range(schedule.size):
        axes.axvline(rank, color="0.6", linewidth=1, zorder=0)
    if look.layout:
        for first, last, host in _runs(look.layout):
            axes.axvspan(first - 0.48, last + 0.48, color=_HOSTS[host % len(_HOSTS)], zorder=-2, linewidth=0)
            axes.annotate(
                f"host {host}",
                ((first + last) / 2, 1),
                (0, 17 + look.font),
                xycoords=axes.get_xaxis_transform(),
                textcoords="offset points",
                ha="center",
                fontsize=look.font + 2.5,
                fontweight="bold",
                annotation_clip=False,
            )
    for top, bottom in list(pairwise(bottoms))[::2]:
        axes.axhspan(top, bottom, color="0.5", alpha=0.09, zorder=-1, linewidth=0)


def _runs(layout: Layout) -> Iterator[tuple[int, int, int]]:
    """The first rank, last rank and host of each run of consecutive ranks on one host."""
    for host, ranks in groupby(range(layout.size), key=layout.hosts.__getitem__):
        first, *others = ranks
        yield first, [first, *others][-1], host


def _step(axes: Axes, group: Group, number: int, place: tuple[float, float], look: _Look) -> None:
    step, schedule = group.steps[number], group.schedules[group.rank_of[number]]
    chunk = step.chunk if isinstance(step, Recv | Send) else step.dst
    colour = _colour(schedule, chunk)
    # Arrows leave downwards and arrive from above; labels are placed where no arrow is.
    sending = isinstance(step, Send)
    beside = 0.1 / look.lane
    x, y = place[0] + (-beside if sending else 1.15 * beside), place[1] + (-0.01 if sending else 0.035)
    if look.short:
        label = _short(chunk)
    else:
        label = step_text(step).removeprefix("copy ") if isinstance(step, Copy) else chunk_text(chunk)
    axes.plot(*place, **_mark(step), color=colour, markeredgecolor=colour, zorder=4)
    axes.text(
        x,
        y,
        label,
        fontsize=look.font,
        ha="right" if sending else "left",
        va="bottom" if sending else "center_baseline",
        color=colour,
        zorder=6,
        bbox={"boxstyle": "square,pad=0.05", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
    )


def _short(chunk: Chunk) -> str:
    """The chunk's blocks: "5" or "4:8" of the output, "i5" of the input, "s5" of scratch."""
    if chunk.count == 0:
        return "0 bytes"
    letter = {IN: "i", OUT: ""}.get(chunk.buffer, "s")
    return f"{letter}{chunk.first}" + (f":{chunk.first + chunk.count}" if chunk.count > 1 else "")


def _arrow(axes: Axes, colour: str, start: tuple[float, float], end: tuple[float, float], width: float) -> None:
    style = {"arrowstyle": "-|>", "color": colour, "linewidth": width, "shrinkA": 0, "shrinkB": 4}
    axes.annotate("", xy=end, xytext=start, arrowprops=style, zorder=5)


def _mark(step: Step) -> dict[str, Any]:
    if isinstance(step, Send):
        return {"marker": ".", "markersize": 5}
    if isinstance(step, Recv):
        return {"marker": "o", "markersize": 7, "markerfacecolor": "white"}
    if isinstance(step, Copy):
        return {"marker": "s", "markersize": 6, "markerfacecolor": "white"}
    return {"marker": "*", "markersize": 11} if step.final else {"marker": "P", "markersize": 8}


def _legend(axes: Axes, look: _Look) -> None:
    chunk = Chunk(OUT)
    kinds: dict[str, Step] = {
        "receive": Recv(0, chunk),
        "reduce": Reduce(chunk, ()),
        "reduce: now complete": Reduce(chunk, (), final=True),
        "copy": Copy(chunk, chunk),
    }
    for name, step in kinds.items():
        axes.plot([], [], **_mark(step), color="0.25", markeredgecolor="0.25", linestyle="none", label=name)
    if look.layout:
        axes.plot([], [], color="0.25", linewidth=1.9, label="between hosts")
        axes.plot([], [], color="0.25", linewidth=1.0, label="inside a host")
    title = "numbers are blocks: 5 of OUT, i5 of IN, s5 of scratch" if look.short else None
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        ncols=len(axes.get_legend_handles_labels()[0]),
        frameon=False,
        fontsize=look.font + 0.5,
        title=title,
        title_fontsize=look.font + 0.5,
    )


def _colour(schedule: Schedule, chunk: Chunk) -> str:
    """The colour of the chunk's first block. A scratch block has the colour of the block that defines its size."""
    if chunk.count == 0:
        return "0.35"
    block = chunk.first
    if chunk.buffer >= SCRATCH:
        block = schedule.scratch[chunk.buffer - SCRATCH][chunk.first][1]
    return _PALETTE[block % len(_PALETTE)]
