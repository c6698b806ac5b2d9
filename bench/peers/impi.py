"""Intel MPI, as installed from the Python package index.

Invariant: Intel MPI is started with its defaults, on this machine only, over shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from collectives.bench.peers.mpi import connect

__all__ = ["BARE", "ENVIRONMENT", "REQUIREMENTS", "commands", "connect", "environment"]

ENVIRONMENT = "impi"
REQUIREMENTS = ("mpi4py==4.1.2",)
BARE = ("impi-rt==2021.19.0",)  # without libfabric, on which it depends: that is for networks


def commands(python: Path, worker: Sequence[str], ranks: int) -> list[list[str]]:
    return [[str(python.parent / "mpiexec"), "-launcher", "fork", "-n", str(ranks), str(python), *worker]]


def environment(folder: str) -> dict[str, str]:
    return {"I_MPI_FABRICS": "shm"}
