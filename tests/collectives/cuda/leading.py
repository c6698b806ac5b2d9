"""The cases of ranks that share a device, on the stand-ins or on a device; the names of cases are the arguments."""

from __future__ import annotations

import sys
from importlib import import_module

from tests.collectives.cuda.led.common import case

CASES = ("choice", "failing", "graphs", "memory", "order", "results", "staging", "wrong")
for module in CASES:
    import_module(f"tests.collectives.cuda.led.{module}")

if __name__ == "__main__":
    case.run(*sys.argv[1:])
