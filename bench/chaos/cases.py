"""All cases, in the order of the fault matrix; each kind of injection has a file, and a case is one entry in it."""

from __future__ import annotations

from typing import Final

from collectives.bench.chaos import deaths, mismatches
from collectives.bench.chaos.case import Case

CASES: Final[tuple[Case, ...]] = tuple(sorted((*deaths.CASES, *mismatches.CASES), key=lambda case: case.row))
