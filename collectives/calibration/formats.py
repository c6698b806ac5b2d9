"""Finds the wire format for each size of the collectives that have them: what wire="auto" stands for.

Invariant: the same call without a format and with each format takes turns. A format that rounds more is chosen only if
it needs at most 90 % of the time of one that rounds less. The choice is the same on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from collectives.algorithms import registry
from collectives.arrays.wire import FLOAT32, WireName, format_of
from collectives.calibration.calls import Arrays, Call
from collectives.calibration.settle import first_within, rows
from collectives.calls import wired
from collectives.schedule.select import select
from collectives.schedule.table import AS_IT_IS, WIRED, Row, Table

if TYPE_CHECKING:
    from collectives.calibration.run import Say
    from collectives.calibration.timing import Stopwatch
    from collectives.core.communicator import Communicator

SIZES: Final = {64 << 10: 3, 1 << 20: 1, 16 << 20: 1}  # bytes, and how often a call is repeated in a round
SHARE: Final = 0.2  # of the time of a calibration
LARGE: Final = 1 << 20  # bytes: from here on, sending and encoding take time in proportion to the bytes
GAIN: Final = 0.9  # of the time of a format that rounds less, at most
# In the order of their rounding errors. The others send as many bytes as one of these, and round more where it matters:
# fp16 ends at 65504, and most numbers of a block lose more bits in fp8.
_FORMATS: Final[tuple[WireName | None, ...]] = (None, "bf16", "int8")
_ROUNDS: Final = 5


def measure(
    comm: Communicator, collectives: Sequence[str], most: int, table: Table, watch: Stopwatch, until: float, say: Say
) -> list[Row]:
    """Measures which wire formats are fastest; returns rows with the condition wire=auto. All ranks have to call this.

    - `collectives`: to measure, in this order; those without formats are left out
    - `most`: the largest size of an array, in bytes
    - `table`: chooses the algorithms of calls, with and without a format
    - `until`: when to end, in seconds since the calibration began. Sizes that would take longer are not measured

    If at least 1 MiB is measured, the row for the largest measured size is for all larger ones.
    """
    names = [name for name in collectives if name in WIRED]
    sizes = [nbytes for nbytes in SIZES if nbytes <= most]
    if not names or not sizes:
        return []
    arrays = Arrays(sizes[-1], comm.size)
    labels = [form or AS_IT_IS for form in _FORMATS]
    done: list[int] = []
    times: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    chosen: dict[str, list[str]] = {name: [] for name in names}
    for nbytes in sizes:
        calls_each = _ROUNDS * (SIZES[nbytes] + 1)
        expected = calls_each * len(labels) * len(names) * watch.pause
        if done:
            expected += calls_each * sum(sum(of_one[-1].values()) for of_one in times.values()) * nbytes / done[-1]
        if watch.spent + expected > until:
            break
        for name in names:
            say(f"{name} of {nbytes} bytes: {', '.join(labels)}", watch.spent / max(until, 1e-9))
            calls = [_call(comm, arrays, name, nbytes, form, table) for form in _FORMATS]
            seconds = watch.turns(calls, [SIZES[nbytes]] * len(calls), _ROUNDS, arrays.renew(nbytes))
            times[name].append(dict(zip(labels, np.median(seconds, axis=0).tolist(), strict=True)))
            chosen[name].append(labels[first_within(seconds, GAIN)])
        done.append(nbytes)
    to_the_end = bool(done) and done[-1] >= LARGE
    found = [rows(name, comm._linked.situation, done, chosen[name], times[name], to_the_end) for name in names]
    return [replace(row, wire=True) for of_one in found for row in of_one]


def _call(
    comm: Communicator, arrays: Arrays, collective: str, nbytes: int, form: WireName | None, table: Table
) -> Call:
    """A call by the algorithm that `table` chooses: with a format, for the bytes of an encoded section."""
    sent = nbytes
    if form is not None:
        known = format_of(form)
        sent = known.elements(min(nbytes, wired.SECTION) // FLOAT32.itemsize) * known.element.itemsize
    usable = {a.name for a in registry.algorithms(collective, comm.size)}
    algorithm = select(collective, sent, comm._linked.situation, usable.__contains__, table).algorithm
    return arrays.call(comm, collective, algorithm, nbytes, form)
