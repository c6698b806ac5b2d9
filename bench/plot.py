"""Draws the results of a benchmark run: latency and bus bandwidth against size, a line for each system.

Invariant: everything is drawn from the run's JSON document, so a saved run can be drawn later. matplotlib is imported
only for drawing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from collectives.base.plotting import require
from collectives.bench import sizes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OURS: Final = ("out-of-place", "in-place")
_PANELS: Final = (("time, median (us)", "seconds", 1e6), ("bus bandwidth (GB/s)", "busbw", 1.0))


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a plot: the times of one library for one collective, dtype, op and algorithm, at all measured sizes.

    `points` are ascending by size. Each point has the size in bytes, the median time in seconds, and the bus bandwidth
    in GB/s.
    """

    label: str
    contestant: str
    points: tuple[tuple[int, float, float], ...]  # bytes, seconds, GB/s


def curves(results: Iterable[dict[str, Any]]) -> dict[str, list[Curve]]:
    """Return a dict from the title of each plot to the lines of the plot.

    `results` are the results of the benchmark, as its JSON file has them. There is one plot for each collective and, if
    gradients were measured, for each model. Collectives of 0 bytes are omitted.
    """
    found: dict[str, dict[tuple[str, str], list[tuple[int, float, float]]]] = {}
    results = [r for r in results if r["bytes"]]
    for result in results:
        title = f"{result['collective']}, {result['trace']}" if result["trace"] else result["collective"]
        for name, measured in result["measurements"].items():
            if "unsupported" not in measured:
                point = (result["bytes"], measured["seconds"]["median"], measured["busbw"])
                found.setdefault(title, {}).setdefault((_label(result, name, results), name), []).append(point)
    return {
        title: [Curve(label, name, tuple(sorted(points))) for (label, name), points in lines.items()]
        for title, lines in found.items()
    }


def _label(result: dict[str, Any], name: str, results: list[dict[str, Any]]) -> str:
    """The label of a line: the system's `name`, and the options in which the results differ, such as dtype."""
    words = ["pycollectives " + name if name in _OURS else name]
    for key in ("dtype", "op", "asked"):
        if len({r[key] for r in results if r["collective"] == result["collective"]}) > 1:
            words.append(str(result[key]))
    if result["trace"]:
        words.append("fused" if result["bucket"] else "one by one")
    return ", ".join(words)


def plot(document: dict[str, Any], file: str | os.PathLike[str]) -> None:
    """Draw the results of a benchmark run into `file`, whose suffix selects the format, such as .png.

    `document` is the JSON document of the run. Raises: OSError; ImportError if matplotlib is not installed.
    """
    require()
    from matplotlib.figure import Figure

    groups = curves(document["results"])
    limits = set(document["arguments"]["limits"])
    figure = Figure(figsize=(13, 1 + 4.2 * max(1, len(groups))), layout="constrained")
    figure.suptitle(_title(document), fontsize=10)
    axes = figure.subplots(max(1, len(groups)), len(_PANELS), squeeze=False)
    for row, (title, lines) in zip(axes, groups.items(), strict=False):
        for panel, (what, key, scale) in zip(row, _PANELS, strict=True):
            _draw(panel, f"{title}: {what}", lines, key, scale, limits)
        handles, labels = row[0].get_legend_handles_labels()  # the first panel has every line
        row[-1].legend(handles, labels, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    figure.savefig(file, dpi=130)


def _draw(axes: Axes, title: str, lines: list[Curve], key: str, scale: float, limits: set[str]) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for number, line in enumerate(lines):
        if line.contestant in limits and key == "busbw":
            continue  # a floor's bytes are not those of the collective
        x = [point[0] for point in line.points]
        y = [scale * (point[1] if key == "seconds" else point[2]) for point in line.points]
        ours = line.contestant in _OURS
        axes.plot(
            x,
            y,
            color=f"C{number}",  # the same in both panels
            marker="o",
            markersize=4 if ours else 3,
            linewidth=2.2 if ours else 1.2,
            linestyle=":" if line.contestant in limits else "-",
            label=line.label,
            zorder=3 if ours else 2,
        )
    ticks = sorted({point[0] for line in lines for point in line.points})
    shown = ticks[:: max(1, len(ticks) // 8)]
    axes.set_xticks(shown, [sizes.text(size) for size in shown], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel("bytes", fontsize=8)
    axes.grid(True, color="0.9")


def _title(document: dict[str, Any]) -> str:
    ranks = document["group"]["ranks"]
    pairs = ", ".join(sorted(document["group"]["pairs"])) or "no transport"
    crowd = ", ranks outnumber cores" if document["group"]["outnumbered"] else ""
    first = ranks[0]
    return f"{len(ranks)} ranks over {pairs}{crowd}; {first['processor']}; pycollectives {first['pycollectives']}"
