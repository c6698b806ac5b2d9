"""MPICH, as installed from the Python package index.

Invariant: MPICH is started with its defaults, on this machine only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from collectives.bench.peers.mpi import connect

__all__ = ["BARE", "ENVIRONMENT", "REQUIREMENTS", "commands", "connect", "environment"]

ENVIRONMENT = "mpich"
REQUIREMENTS = ("mpich==5.0.2", "mpi4py==4.1.2")
BARE: tuple[str, ...] = ()


def commands(python: Path, worker: Sequence[str], ranks: int) -> list[list[str]]:
    return [[str(python.parent / "mpiexec"), "-launcher", "fork", "-n", str(ranks), str(python), *worker]]


def environment(folder: str) -> dict[str, str]:
    return {}
