"""Open MPI over UCX, restricted to RDMA, also between ranks of one machine.

Invariant: the installation and launcher are those of `openmpi`; all messages, those of collectives included, go over
the RDMA devices of the ranks, which differ if there are several.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from collectives.bench.peers import openmpi, rdma
from collectives.bench.peers.mpi import connect
from collectives.bench.peers.openmpi import BARE, ENVIRONMENT, REQUIREMENTS
from collectives.bench.peers.rdma import Port

__all__ = ["BARE", "ENVIRONMENT", "REQUIREMENTS", "commands", "connect", "environment"]


def commands(python: Path, worker: Sequence[str], ranks: int) -> list[list[str]]:
    launcher = str(python.parent / "mpiexec")
    line = [launcher, "--oversubscribe"]
    for rank in range(ranks):
        settings = [word for name, value in _over(rdma.port_of(rank)).items() for word in ("-x", f"{name}={value}")]
        line += [*([":"] if rank else []), "-n", "1", *settings, str(python), *worker]
    return [line]


def environment(folder: str) -> dict[str, str]:
    return {
        **openmpi.environment(folder),
        "OMPI_MCA_pml": "ucx",
        "OMPI_MCA_osc": "ucx",
        # Otherwise it refuses devices of which it has not heard, such as soft-RoCE.
        "OMPI_MCA_pml_ucx_tls": "any",
        "OMPI_MCA_pml_ucx_devices": "any",
        # Collectives go through messages, too, and not through shared memory.
        "OMPI_MCA_coll": "^sm,han,xhc,smdirect,ucc",
    }


def _over(port: Port | None) -> dict[str, str]:
    """The environment variables with which UCX sends everything over the RDMA port `port`; None: any port."""
    found = {"UCX_TLS": "rc_verbs,ud_verbs:aux"}
    if port is not None:
        found["UCX_NET_DEVICES"] = f"{port.device}:1"
    if port is not None and port.address is not None:
        found["UCX_IB_GID_INDEX"] = str(port.address)
    return found
