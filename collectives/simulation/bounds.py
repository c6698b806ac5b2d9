"""The least number of bytes that a collective has to move, and the efficiency of a predicted time.

Invariant: a bound counts bytes alone and is the same for all algorithms, so no algorithm can move fewer bytes.
"""

from __future__ import annotations

from collectives.simulation.cost import Costs
from collectives.simulation.topology import Topology


def least_bytes(collective: str, ranks: int, nbytes: int, topology: Topology) -> float:
    """The fewest bytes that any algorithm for the collective makes the busiest host send or receive.

    If all ranks are on one host, the busiest rank counts instead of the busiest host. `nbytes`: the size in bytes of a
    rank's input or output array, whichever is larger.
    """
    per_host = min(topology.ranks_per_host, ranks)
    hosts = -(-ranks // topology.ranks_per_host)
    parties = hosts if hosts > 1 else ranks
    others = (parties - 1) / parties
    each = per_host if hosts > 1 and collective == "alltoall" else 1
    if collective == "barrier" or ranks == 1:
        return 0.0
    return each * nbytes * {"allreduce": 2 * others, "broadcast": 1.0, "reduce": 1.0}.get(collective, others)


def efficiency(
    collective: str, ranks: int, nbytes: int, seconds: float, topology: Topology, costs: Costs
) -> float | None:
    """The shortest time that bandwidth allows for a collective, divided by its predicted time `seconds`.

    The bandwidth is that of a host's network cards. If there is one host, it is the bandwidth of a core that copies
    through shared memory. None if no data has to be moved.
    """
    least = least_bytes(collective, ranks, nbytes, topology)
    pace = costs.bandwidth * topology.cards if ranks > topology.ranks_per_host else costs.inside_bandwidth
    return least / pace / seconds if least and seconds else None
