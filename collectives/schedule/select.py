"""Chooses the algorithm of a call with algorithm "auto", its format with wire="auto", and gives the reasons.

Invariant: the choice depends only on data that is the same on every rank (collective, group, number of bytes, the
group's decision table), never on one rank's buffers. Ranks that choose different algorithms cannot exchange messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from collectives.schedule.defaults import DEFAULTS
from collectives.schedule.table import HOST_MEMORY, Row, Situation, Table


@dataclass(frozen=True, slots=True)
class Choice:
    """What is chosen for a call, and the reason, a text. `row` is the row of the table that led to the choice."""

    algorithm: str
    reason: str
    row: Row


def select(
    collective: str,
    nbytes: int,
    situation: Situation,
    usable: Callable[[str], bool],
    table: Table = DEFAULTS,
    memory: str = HOST_MEMORY,
) -> Choice:
    """Chooses an algorithm for a call, by the first row of `table` whose conditions match the call.

    `situation`: the properties of the group. `usable(algorithm)`: whether this algorithm may be chosen; other rows are
    skipped. `memory`: the kind of memory of the call's arrays. Raises LookupError if no row matches.
    """
    for row in table.rows:
        is_for = row.collective == collective and row.memory == memory and nbytes <= row.bytes and not row.wire
        if is_for and row.fits(situation) and usable(row.algorithm):
            return Choice(row.algorithm, row.reason or "no reason given", row)
    raise LookupError(f"no algorithm for {collective} of {nbytes} bytes among {situation.size} ranks")


def select_wire(collective: str, nbytes: int, situation: Situation, table: Table = DEFAULTS) -> Choice:
    """Chooses the wire format of a call with wire="auto" on float32 arrays, by the first row that matches the call.

    The result's `algorithm` is the name of the format, or "float32": numbers are sent as they are. Only rows with the
    condition wire=auto count. Raises LookupError if no row matches.
    """
    for row in table.rows:
        if row.wire and row.collective == collective and nbytes <= row.bytes and row.fits(situation):
            return Choice(row.algorithm, row.reason or "no reason given", row)
    raise LookupError(f"no wire format for {collective} of {nbytes} bytes among {situation.size} ranks")


def ladder(collective: str, situation: Situation, usable: Callable[[str], bool], table: Table = DEFAULTS) -> list[Row]:
    """The rows of `table` that `select` uses for `collective` on arrays in host memory, from small to large messages.

    `situation` describes the group. `usable(algorithm)`: whether this algorithm may be chosen.
    """
    rows: list[Row] = []
    for row in table.rows:
        is_for = row.collective == collective and row.memory == HOST_MEMORY and not row.wire
        fits = is_for and row.fits(situation) and usable(row.algorithm)
        if fits and (not rows or row.bytes > rows[-1].bytes):
            rows.append(row)
    return rows
