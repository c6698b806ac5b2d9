"""Lines over a logarithmic scale, in a file.

Invariant: matplotlib is needed only here, and only when something is drawn.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

FORMATS: Final = (".svg", ".png", ".pdf")

Line = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """`lines` by label; `tick` writes a number of the horizontal axis."""

    title: str
    across: str
    up: str
    lines: Mapping[str, Line]
    tick: Callable[[int], str] = str


def plot(panels: Sequence[Panel], file: str | os.PathLike[str]) -> None:
    """Draw the panels side by side. The suffix says in which format. ImportError without matplotlib; OSError."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("drawing needs matplotlib: pip install 'pycollectives[plot]'") from None
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(6.4 * columns, 4.6 * rows), layout="constrained")
    for axes, panel in zip(figure.subplots(rows, columns, squeeze=False).flat, panels, strict=False):
        axes.set_title(panel.title, fontsize=10)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for label, line in panel.lines.items():
            axes.plot([x for x, _ in line], [y for _, y in line], marker="o", markersize=3, label=label)
        ticks = sorted({round(x) for line in panel.lines.values() for x, _ in line})
        shown = ticks[:: max(1, -(-len(ticks) // 8))]
        axes.set_xticks(shown, [panel.tick(number) for number in shown], fontsize=8)
        axes.minorticks_off()
        axes.set_xlabel(panel.across)
        axes.set_ylabel(panel.up)
        axes.grid(True, color="0.9")
        if panel.lines:
            axes.legend(fontsize=8)
    figure.savefig(file, dpi=130)
