"""All cases, in the order of the fault matrix; each kind of injection has a file, and a case is one entry in it."""

from __future__ import annotations

from typing import Final

from collectives.bench.chaos import deaths, endings, limits, mismatches, partitions, silences, stores
from collectives.bench.chaos.case import Case

_MODULES: Final = (deaths, silences, partitions, mismatches, stores, limits, endings)
CASES: Final[tuple[Case, ...]] = tuple(
    sorted((case for module in _MODULES for case in module.CASES), key=lambda case: case.row)
)
