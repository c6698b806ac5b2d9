"""Open MPI restricted to TCP over loopback, to approximate on one machine its behaviour between hosts.

Invariant: the installation and launcher are those of `openmpi`; all messages, those of collectives included, go through
sockets.
"""

from __future__ import annotations

from collectives.bench.peers import openmpi
from collectives.bench.peers.mpi import connect
from collectives.bench.peers.openmpi import BARE, ENVIRONMENT, REQUIREMENTS, commands

__all__ = ["BARE", "ENVIRONMENT", "REQUIREMENTS", "commands", "connect", "environment"]


def environment(folder: str) -> dict[str, str]:
    return {
        **openmpi.environment(folder),
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "tcp,self",
        "OMPI_MCA_btl_tcp_if_include": "lo",
    }
