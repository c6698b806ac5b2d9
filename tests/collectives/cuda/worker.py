"""Runs cases on one rank, on the stand-ins or on a device; the names of cases are the arguments."""

from __future__ import annotations

import sys
from importlib import import_module

from tests.collectives.cuda.cases.common import case

CASES = (
    "choice",
    "failing",
    "graphs",
    "hierarchies",
    "moves",
    "order",
    "passing",
    "processes",
    "results",
    "schedules",
    "wrong",
    "xla",
)
for module in CASES:
    import_module(f"tests.collectives.cuda.cases.{module}")

if __name__ == "__main__":
    case.run(*sys.argv[1:])
