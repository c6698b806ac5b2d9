"""perftest: `ib_write_lat`, which writes messages by RDMA to the other rank and back. See `rdma` for what its time is.

Invariant: nothing is installed; the program is that of the system's package perftest.
"""

from __future__ import annotations

import re

from collectives.bench.peers.here import commands
from collectives.bench.peers.rdma import Member, Port, Program

ENVIRONMENT = "perftest"
REQUIREMENTS: tuple[str, ...] = ()
BARE: tuple[str, ...] = ()

__all__ = ["BARE", "ENVIRONMENT", "REQUIREMENTS", "commands", "connect", "environment"]


def environment(folder: str) -> dict[str, str]:
    return {}


def connect(folder: str, ranks: int, rank: int | None) -> Member:
    return Member(folder, ranks, rank, Program("ib_write_lat", "perftest", _command, _at, lambda port: {}, _times))


def _command(port: Port, nbytes: int, iterations: int) -> list[str]:
    address = [] if port.address is None else ["-x", str(port.address)]
    return ["-d", port.device, *address, "-s", str(nbytes), "-n", str(iterations), "-F", "-U"]


def _at(number: int) -> list[str]:
    return ["-p", str(number)]


def _times(output: str) -> list[float]:
    return [float(found) / 1e6 for found in re.findall(r"^\d+, ([\d.e+-]+)\s*$", output, re.MULTILINE)]
