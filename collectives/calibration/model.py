"""Predicts the time of an algorithm by the alpha-beta-gamma model, corrected by a few measured times.

Invariant: the model is used only to exclude algorithms that cannot win, never to choose between the rest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import exp, log
from typing import Final

from collectives.calibration.links import Link
from collectives.schedule.form import Recv, Reduce, Schedule, Send
from collectives.schedule.group import Group
from collectives.schedule.play import Play

MOST_PLAYED: Final = 64  # ranks: in larger groups schedules are not played, and nothing is predicted


class Model:
    """Predicts how many seconds one collective takes with one algorithm in one group, for any number of bytes."""

    def __init__(self, schedules: Sequence[Schedule], link: Link) -> None:
        """If `schedules` is empty, only measured times are used."""
        self._alpha = self._per_byte = 0.0
        self._measured: list[tuple[float, float]] = []  # (log bytes, log of measured over predicted), ascending
        if schedules:
            blocks = max(*schedules[0].grid, 1)
            moved, reduced = (max(column) for column in zip(*map(_traffic, schedules), strict=True))
            self._alpha = max(Play(Group(schedules)).rounds(), default=0) * link.alpha
            self._per_byte = (moved * link.beta + reduced * link.gamma) / blocks

    def correct(self, measured: Mapping[int, float]) -> None:
        """Makes predictions agree with `measured`, which has measured seconds by number of bytes.

        For other numbers of bytes, predictions are multiplied by a factor. It is interpolated between the factors for
        the measured numbers of bytes.
        """
        points = sorted(measured.items())
        self._measured = [(log(max(1, nbytes)), log(seconds / self._plain(nbytes))) for nbytes, seconds in points]

    def seconds(self, nbytes: int) -> float:
        return self._plain(nbytes) * exp(self._correction(log(max(1, nbytes))))

    def _plain(self, nbytes: int) -> float:
        return (self._alpha + self._per_byte * nbytes) or 1e-6

    def _correction(self, at: float) -> float:
        points = self._measured
        if not points:
            return 0.0
        after = bisect_left(points, (at, float("-inf")))
        if after in (0, len(points)):
            return points[min(after, len(points) - 1)][1]
        (x0, y0), (x1, y1) = points[after - 1], points[after]
        return y0 + (y1 - y0) * (at - x0) / (x1 - x0)


def _traffic(schedule: Schedule) -> tuple[int, int]:
    """Returns how many blocks a rank sends or receives, whichever is more, and how many it adds to other blocks."""
    sent = received = reduced = 0
    for step in schedule.steps:
        if isinstance(step, Send):
            sent += step.chunk.count  # once, however many peers read it
        elif isinstance(step, Recv):
            received += step.chunk.count
        elif isinstance(step, Reduce):
            received += len(step.peers) * step.dst.count
            reduced += (len(step.operands) - 1) * step.dst.count
    return max(sent, received), reduced
