"""Makes rows of the algorithm table from measured times: which algorithm to use for which sizes.

Invariant: the algorithm changes from one size to the next only if the gain is larger than measurement noise, so that
another calibration of the same machine produces the same table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, log, log2, sqrt
from typing import TYPE_CHECKING, Final

import numpy as np

from collectives.schedule.table import ANY_SIZE, Row, Situation, bytes_text

if TYPE_CHECKING:
    from collectives.calibration.timing import Times

SWITCH: Final = log(1.04)  # what a change of algorithm between two sizes has to gain, over all sizes together
STRANGER: Final = log(1.02)  # what an algorithm that is not the library's default has to gain, at each size

Losses = Mapping[str, float]  # by algorithm: logarithm of its time over that of the fastest


def settle(
    losses: Sequence[Losses], usual: Sequence[str], switch: float = SWITCH, stranger: float = STRANGER
) -> list[str]:
    """Chooses an algorithm for each size of a collective, from measured times: the choice with the least penalties.

    - `losses`: for each size, log(time / fastest time) by algorithm, the penalty for choosing the algorithm
    - `usual`: the library's default algorithm for each size
    - `switch`: the penalty for each change of algorithm from one size to the next
    - `stranger`: the penalty for each size with another algorithm than the default

    Only algorithms that were measured at a size are chosen for it.
    """
    best: dict[str, tuple[float, list[str]]] = {}
    for here, default in zip(losses, usual, strict=True):
        after: dict[str, tuple[float, list[str]]] = {}
        for name, loss in here.items():
            cost = loss + (0.0 if name == default else stranger)
            ways = [(total + (0.0 if last == name else switch), path) for last, (total, path) in best.items()]
            total, path = min(ways, default=(0.0, []), key=lambda way: way[0])
            after[name] = total + cost, [*path, name]
        best = after
    return min(best.values(), key=lambda way: way[0])[1] if best else []


def first_within(seconds: Times, gain: float) -> int:
    """Returns the index of the way to choose, out of several that are to be preferred in their order.

    `seconds`: measured times, with a row for each round and a column for each way. A later way is chosen only if it
    needs at most `gain` of the time of the one chosen before, in the median round.
    """
    best = 0
    for column in range(1, seconds.shape[1]):
        if np.median(seconds[:, column] / seconds[:, best]) <= gain:
            best = column
    return best


def rows(
    collective: str,
    situation: Situation,
    sizes: Sequence[int],
    chosen: Sequence[str],
    times: Sequence[Mapping[str, float]],
    to_the_end: bool,
) -> list[Row]:
    """Returns rows for a table of algorithms: one for each series of consecutive sizes with the same algorithm.

    The border between two rows is near the geometric mean of the measured sizes on both sides. With `to_the_end` the
    last row applies to all larger sizes. Otherwise it ends where the next border would be if the series of sizes
    continued.

    `chosen`: the algorithm for each of `sizes`. `times`: for each size, the seconds of each algorithm. `situation`: the
    properties of the measured group.
    """
    found: list[Row] = []
    first = 0
    for last, name in enumerate(chosen):
        if last + 1 < len(chosen) and chosen[last + 1] == name:
            continue
        if last + 1 < len(sizes):
            upto = border(sizes[last], sizes[last + 1])
        else:
            upto = ANY_SIZE if to_the_end else border(sizes[last], sizes[last] ** 2 // sizes[last - 1] if last else 0)
        found.append(
            Row(
                collective,
                (situation.kind,),
                (situation.size, situation.size),
                upto,
                name,
                _reason(name, sizes[first : last + 1], times[first : last + 1]),
                (situation.per_host, situation.per_host),
                situation.oversubscribed,
                hosts=(situation.hosts, situation.hosts),
            )
        )
        first = last + 1
    return found


def border(below: int, above: int) -> int:
    """Returns a round number of bytes near the geometric mean of two sizes; `below` itself if `above` is not larger."""
    if above <= below:
        return below
    mean = sqrt(max(1, below) * above)
    unit = 2.0 ** (floor(log2(mean)) - 1)
    return max(below, int(round(mean / unit) * unit))


def _reason(name: str, sizes: Sequence[int], times: Sequence[Mapping[str, float]]) -> str:
    """The measured times at the size in the middle of the run."""
    middle = len(sizes) // 2
    here = times[middle]
    others = sorted((seconds, other) for other, seconds in here.items() if other != name)
    text = f"measured {_us(here[name])} us at {bytes_text(sizes[middle])}"
    return text + (f", {others[0][1]} {_us(others[0][0])}" if others else "")


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.3g}" if seconds < 1e-3 else f"{seconds * 1e6:.0f}"
