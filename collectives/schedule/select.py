"""Chooses the algorithm for "auto", with the reason.

Invariant: the choice depends only on data that is the same on every rank (collective, group, bytes, the group's table),
never on one rank's buffers, since ranks that choose differently cannot exchange messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from collectives.schedule.defaults import DEFAULTS
from collectives.schedule.table import Row, Situation, Table


@dataclass(frozen=True, slots=True)
class Choice:
    """The algorithm of a call. `row`: the row of the table of algorithms that decided."""

    algorithm: str
    reason: str
    row: Row


def select(
    collective: str, nbytes: int, situation: Situation, usable: Callable[[str], bool], table: Table = DEFAULTS
) -> Choice:
    """The table's first matching row whose algorithm is `usable`. LookupError if there is none."""
    for row in table.rows:
        if row.collective == collective and nbytes <= row.bytes and row.fits(situation) and usable(row.algorithm):
            return Choice(row.algorithm, row.reason or "no reason given", row)
    raise LookupError(f"no algorithm for {collective} of {nbytes} bytes among {situation.size} ranks")


def ladder(collective: str, situation: Situation, usable: Callable[[str], bool], table: Table = DEFAULTS) -> list[Row]:
    """The rows of the table that `select` chooses for the group `situation`, in order of message size."""
    rows: list[Row] = []
    for row in table.rows:
        fits = row.collective == collective and row.fits(situation) and usable(row.algorithm)
        if fits and (not rows or row.bytes > rows[-1].bytes):
            rows.append(row)
    return rows
