"""Draws line diagrams with a logarithmic horizontal axis into a file.

Invariant: matplotlib is imported only when something is drawn. Each line has its name at its end, and a
combination of dashes and marker of its own, for readers who see no colours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from collectives.base.plotting import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Line = Sequence[tuple[float, float]]

# Okabe and Ito's colours without yellow: distinguishable with colour blindness, and readable as text on white.
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_DASHES: Final = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
_MARKERS: Final = "osD^vPX<>*ph8"
_WIDTHS: Final = (3.4, 1.1)  # of the first and the last line: so lines on top of each other can all be seen
_GAP: Final = 0.046  # part of an axis between two names
_SAMPLE: Final = (1.04, 1.1)  # where a piece of a line is drawn beyond the axis, before its name


@dataclass(frozen=True, slots=True)
class Panel:
    """One line diagram of a figure that may have several.

    `across`, `up`: the titles of the horizontal and the vertical axis. `lines`: the points (x, y) of each line, by
    name. `tick` returns the text for a position on the horizontal axis. `percent`: the vertical axis goes from 0 to 100
    %; otherwise it is logarithmic.
    """

    title: str
    across: str
    up: str
    lines: Mapping[str, Line]
    tick: Callable[[int], str] = str
    percent: bool = False


def plot(panels: Sequence[Panel], file: str | os.PathLike[str]) -> None:
    """Draws the diagrams `panels` into one figure, two side by side, and writes it to `file`.

    The suffix of `file`, such as .svg, selects the format. Raises ImportError without matplotlib, OSError if the file
    cannot be written.
    """
    require()
    from matplotlib.figure import Figure

    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(8.2 * columns, 5.0 * rows), layout="constrained")
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    styles = {name: style(number, len(names)) for number, name in enumerate(names)}
    for axes, panel in zip(figure.subplots(rows, columns, squeeze=False).flat, panels, strict=False):
        _draw(axes, panel, styles)
    figure.savefig(file, dpi=130)


def style(number: int, count: int) -> dict[str, Any]:
    """Returns Matplotlib's settings (colour, dashes, marker, width) for line `number` of `count` lines in a diagram.

    The first 52 styles differ even without colours.
    """
    first, last = _WIDTHS
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "linestyle": _DASHES[number % len(_DASHES)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linewidth": first + (last - first) * number / max(1, count - 1),
        "markersize": 5.5,
    }


def _draw(axes: Axes, panel: Panel, styles: Mapping[str, dict[str, Any]]) -> None:
    from matplotlib.ticker import NullLocator

    axes.set_title(panel.title, fontsize=11)
    axes.set_xscale("log", base=2)
    for name, line in panel.lines.items():
        axes.plot([x for x, _ in line], [y for _, y in line], label=name, **styles[name])
    if panel.percent:
        axes.set_ylim(0, 102)
        axes.set_yticks(range(0, 101, 20), [f"{share} %" for share in range(0, 101, 20)])
    else:
        axes.set_yscale("log")
    ticks = sorted({round(x) for line in panel.lines.values() for x, _ in line})
    shown = ticks[:: max(1, -(-len(ticks) // 8))]
    axes.set_xticks(shown, [panel.tick(number) for number in shown], fontsize=8)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(panel.across)
    axes.set_ylabel(panel.up)
    axes.grid(True, color="0.9")
    _names(axes, panel, styles)


def _names(axes: Axes, panel: Panel, styles: Mapping[str, dict[str, Any]]) -> None:
    """Write the lines' names to the right of the diagram, each beside a sample of its line and near the line's end."""
    ends = {name: line[-1] for name, line in panel.lines.items() if line}
    if not ends:
        return
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = {name: float(to_axes.transform(end)[1]) for name, end in ends.items()}
    order = sorted(heights, key=heights.__getitem__)
    for name, height in zip(order, spread([heights[name] for name in order], _GAP), strict=True):
        leads = {"arrowstyle": "-", "color": "0.55", "linewidth": 0.7, "relpos": (0, 0.5), "shrinkA": 0, "shrinkB": 4}
        axes.annotate(
            " ",
            ends[name],
            (_SAMPLE[0], height),
            textcoords="axes fraction",
            va="center",
            fontsize=2,
            annotation_clip=False,
            arrowprops=leads,
        )
        shown = {**styles[name], "transform": axes.transAxes, "clip_on": False}
        first, last = _SAMPLE
        axes.plot([first, (first + last) / 2, last], [height] * 3, **shown, markevery=[1])
        axes.text(last + 0.012, height, name, transform=axes.transAxes, va="center", fontsize=9)


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Places labels on an axis: returns positions from 0 to 1 that are at least `gap` apart, if there is room.

    Each position is as near as possible to the `wanted` position of the label. Both lists ascend. Neighbours that are
    too close are placed `gap` apart around the mean of their wanted positions.
    """
    if not wanted:
        return []
    gap = min(gap, 1 / len(wanted))
    groups: list[list[float]] = []  # number of members, mean of where they want the first one
    for place in wanted:
        groups.append([1.0, place])
        while len(groups) > 1 and groups[-1][1] < groups[-2][1] + gap * groups[-2][0]:
            count, first = groups.pop()
            before = groups[-1]
            before[1] = (before[0] * before[1] + count * (first - gap * before[0])) / (before[0] + count)
            before[0] += count
    placed = [first + gap * turn for count, first in groups for turn in range(int(count))]
    for turn in range(len(placed)):  # move places that are too low up, then those that are too high down
        placed[turn] = max(placed[turn], gap * turn)
    for turn in range(len(placed)):
        placed[-1 - turn] = min(placed[-1 - turn], 1 - gap * turn)
    return placed
