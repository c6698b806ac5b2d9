"""The measured costs of links and reductions in this group: latency, time per byte, time per reduced byte.

Invariant: for each kind of link that rank 0 has (such as shared memory, TCP), rank 0 exchanges messages with one peer,
while the other ranks wait. All ranks get the same costs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from collectives.native import _engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectives.calibration.timing import Stopwatch
    from collectives.core.communicator import Communicator

_SMALL, _MIDDLE, _LARGE = 8, 64 << 10, 1 << 20  # bytes
_PATIENCE: Final = 0.05  # seconds for one size; at least three round trips are made


@dataclass(frozen=True, slots=True)
class Link:
    """The costs of messages over one transport: a message of n bytes takes alpha + n * beta seconds.

    Adding n bytes to n other bytes takes n * gamma seconds.
    """

    alpha: float
    beta: float
    gamma: float


def measure(comm: Communicator, kinds: Sequence[str], watch: Stopwatch) -> dict[str, Link]:
    """Measures the costs of messages over each transport that rank 0 uses; returns a dict from transport to costs.

    All ranks have to call this function. `kinds`: the transport from rank 0 to each rank; used on rank 0 only. `watch`
    times the calls.
    """
    table = sorted(set(kinds) - {"self"}) if comm.rank == 0 else []
    # Rank 0 decides which rank to ping for each kind of link, and shares these rank numbers.
    peers = [kinds.index(kind) for kind in table]
    count = int(watch.share([len(peers)])[0])
    peers = [int(p) for p in watch.share([float(p) for p in peers] or [0.0] * count)]
    found = {}
    for number, peer in enumerate(peers):
        times = [_ping(comm, peer, nbytes) for nbytes in (_SMALL, _MIDDLE, _LARGE)]
        gamma = _reducing() if comm.rank == 0 else 0.0
        small, middle, large, gamma = watch.share([*times, gamma])
        beta = max((large - middle) / (_LARGE - _MIDDLE), 1e-13)
        kind = table[number] if comm.rank == 0 else str(number)
        found[kind] = Link(small, beta, gamma)
    return found


def facts(links: Mapping[str, Link]) -> dict[str, str]:
    """Returns the costs of messages in `links` as a dict of texts by name, such as "tcp.alpha".

    The calibration saves these texts in the file of its table, which says which algorithm is fastest. The cost alpha is
    in seconds; beta and gamma are in seconds per byte.
    """
    return {f"{kind}.{name}": f"{getattr(link, name):.4g}" for kind, link in links.items() for name in Link.__slots__}


def from_facts(values: Mapping[str, str]) -> dict[str, Link]:
    """Reads the costs of messages over each transport from `values`, which the function `facts` made.

    Skips transports of which a cost is missing. Raises ValueError for invalid numbers.
    """
    kinds = {name.rpartition(".")[0] for name in values if name.endswith(".alpha")}
    return {
        kind: Link(*(float(values[f"{kind}.{name}"]) for name in Link.__slots__))
        for kind in sorted(kinds)
        if all(f"{kind}.{name}" in values for name in Link.__slots__)
    }


def _ping(comm: Communicator, peer: int, nbytes: int) -> float:
    """Returns the seconds that `nbytes` bytes take from rank 0 to `peer`: half of the median round trip.

    Ranks other than these two return 0.0 at once.
    """
    if comm.rank not in (0, peer):
        return 0.0
    other = peer if comm.rank == 0 else 0
    data, back, times = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8), list[float]()
    goes_on = np.ones(1, np.uint8)

    def round_trip() -> None:
        if comm.rank == 0:
            comm.send(data, other)
            comm.recv(back, other)
        else:
            comm.recv(back, other)
            comm.send(data, other)

    end = time.perf_counter() + _PATIENCE
    while goes_on[0]:
        for _ in range(3):
            start = time.perf_counter()
            round_trip()
            times.append((time.perf_counter() - start) / 2)
        if comm.rank == 0:
            goes_on[0] = time.perf_counter() < end and len(times) < 300
            comm.send(goes_on, other)
        else:
            comm.recv(goes_on, other)
    return float(np.median(times[1:]))


def _reducing() -> float:
    """Seconds per byte of one operand that is added to another."""
    dst, left, right = (np.ones(_LARGE // 4, np.float32) for _ in range(3))
    code = _engine.DTYPES["float32"], _engine.OPS["sum"]

    def once() -> None:
        _engine.reduce(dst, [left, right], *code)

    return _fastest(once) / _LARGE


def _fastest(call: Callable[[], None]) -> float:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
