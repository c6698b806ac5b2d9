"""Runs one case on one rank, on the stand-ins or on a device; the name of the case is the argument."""

from __future__ import annotations

import sys
from importlib import import_module

from tests.collectives.cuda.cases.common import case

for module in ("choice", "failing", "graphs", "hierarchies", "moves", "order", "results", "schedules", "wrong"):
    import_module(f"tests.collectives.cuda.cases.{module}")

if __name__ == "__main__":
    case.run(sys.argv[1])
