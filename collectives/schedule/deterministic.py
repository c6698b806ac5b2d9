"""The table of algorithms for `init(deterministic=True)`: results have the same bits in every run.

Invariant: every reduction combines its operands from left to right in the order of ranks, for every array size,
transport, placement of ranks, and load. So the result's bits depend only on the inputs and the number of ranks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from collectives.schedule.defaults import DEFAULTS
from collectives.schedule.table import Table, join, parse

_IN_ORDER: Final = parse(
    """
allreduce       any  any  4K   one_shot : in the order of ranks, one round
allreduce       any  any  any  two_shot : in the order of ranks, each rank reduces its part
reduce          any  any  any  direct   : in the order of ranks
reduce_scatter  any  any  any  direct   : in the order of ranks
scan            any  any  any  direct   : in the order of ranks
exscan          any  any  any  direct   : in the order of ranks
""",
    source="init(deterministic=True)",
)

DETERMINISTIC: Final[Table] = replace(join([_IN_ORDER, DEFAULTS]), in_order=True)
"""The rows for reductions, then the built-in rows for other collectives; users' tables and calibrations are ignored."""
