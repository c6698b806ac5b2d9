"""Simulates the board and the pool, the engines that replace the messages of a schedule if ranks share memory.

The board is shared memory to which each rank writes a short message that the other ranks read. The pool is shared
memory in which the ranks of a host add up long arrays.

Invariant: the simulation uses the board and the pool under the same conditions as the C++ engine; see
native/src/shm/board_task.cpp, board_by_core.cpp and pool_task.cpp. Literature: R. L. Graham, G. Shipman: MPI Support
for Multi-core Architectures: Optimized Shared Memory Collectives, EuroPVM/MPI 2008.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from collectives.schedule.form import Recv, Reduce, Schedule, Send
from collectives.simulation.cost import Costs
from collectives.simulation.topology import Topology

_ON_BOARD: Final = 4 << 10  # most bytes, if each rank has a core of its own
_ON_BOARD_SHARED_CORES: Final = 128 << 10
_POOLED: Final = 4 << 10  # least bytes
_POOLED_WITH_CORES: Final = 8  # most ranks, if each rank has a core of its own


@dataclass(frozen=True, slots=True)
class Done:
    """The predicted cost of a collective in shared memory, where ranks need no messages.

    `seconds`: its time. `rounds`: how often a rank waits for others. `sent`: bytes that a rank writes for others.
    `busy`: seconds that a core works.
    """

    seconds: float
    rounds: int
    sent: float
    busy: float


@dataclass(frozen=True, slots=True)
class Shortcuts:
    """Whether, and how, ranks that share memory can run a collective without messages.

    Ranks can write blocks of data to the board, shared memory from which the other ranks read the blocks. Or ranks can
    add up their arrays in the pool, another part of shared memory.

    - `blocks`: the number of blocks of a rank's input or output buffer, whichever has more
    - `pooled`: whether the pool can be used
    - `published`: the number of blocks that a rank writes to the board; 0 if the board cannot be used
    - `read`: the number of blocks that a rank reads from each other rank
    - `mutual`: whether each rank both writes and reads
    - `reduces`: whether the collective is a reduction
    """

    blocks: int
    pooled: bool
    published: int
    read: int
    mutual: bool
    reduces: bool

    @staticmethod
    def of(schedule: Schedule) -> Shortcuts:
        published, read = (0, 0) if schedule.flat is None else (chunk.count for chunk in schedule.flat)
        reductions = [step for step in schedule.steps if isinstance(step, Reduce)]
        sends = any(isinstance(step, Send) for step in schedule.steps)
        mutual = sends and any(isinstance(step, Recv | Reduce) for step in schedule.steps)
        blocks = max(*schedule.grid, 1)
        return Shortcuts(blocks, schedule.pooled, published, read, mutual, bool(reductions))

    def replaced(self, nbytes: int, ranks: int, topology: Topology, costs: Costs) -> Done | None:
        """Returns the predicted cost of the collective in shared memory; None if ranks exchange messages instead.

        `nbytes`: the size of a rank's input or output array, whichever is larger. `ranks`: the number of ranks.
        `costs`: the simulator's costs.
        """
        if not 1 < ranks <= topology.ranks_per_host:
            return None
        per_core = topology.per_core(ranks)
        if self.published and costs.board > 0:
            if nbytes <= _ON_BOARD_SHARED_CORES and per_core > 1 and ranks > 2 and self._is_added_by_all():
                return _by_core(nbytes, per_core, topology.cores_of(ranks), costs)
            if nbytes <= (_ON_BOARD_SHARED_CORES if per_core > 1 else _ON_BOARD):
                return self._on_board(self.published, nbytes / self.blocks, ranks, per_core, costs)
        many = per_core == 1 and ranks > _POOLED_WITH_CORES
        if self.pooled and costs.pool_bandwidth > 0 and nbytes >= _POOLED and not many:
            return _pooled(nbytes, ranks, per_core, costs)
        return None

    def _is_added_by_all(self) -> bool:
        """Whether each rank publishes its whole array, and reduces the arrays of all ranks."""
        return self.mutual and self.reduces and self.published == self.read == self.blocks

    def _on_board(self, publishes: int, block: float, ranks: int, per_core: int, costs: Costs) -> Done:
        """Predict a call on the board: every rank publishes its chunk and reads all other ranks' chunks.

        The ranks of a core run one after the other. `publishes`: the number of blocks that a rank publishes. `block`:
        the bytes of a block.
        """
        published, read = publishes * block, self.read * block * (ranks - 1)
        if not self.reduces:
            moved = (published + read) / costs.inside_bandwidth
        else:
            moved = published / costs.inside_bandwidth + read / costs.reduce_bandwidth
        waits = costs.board + costs.board_overhead * (ranks - 1) + costs.board_switch * (per_core - 1)
        return Done(waits + per_core * moved, 1, published, per_core * moved)


def _by_core(nbytes: int, per_core: int, cores: int, costs: Costs) -> Done:
    """Predict a reduction on the board in two stages, first the ranks of each core, then the cores.

    The last rank of a core adds up the arrays of that core's ranks. Then each rank adds up the sums of all cores.
    """
    others_here, others = per_core - 1, cores - 1
    added = others_here + per_core * others  # additions of one array
    moved = others_here + (0 if others else per_core)
    busy = nbytes * (added / costs.reduce_bandwidth + moved / costs.inside_bandwidth)
    waits = costs.board + costs.board_overhead * (others_here + others) + costs.board_switch * others_here
    return Done(waits + busy, 1, float(nbytes), busy)


def _pooled(nbytes: int, ranks: int, per_core: int, costs: Costs) -> Done:
    """Predict a call in the pool: every rank adds its array to a sum in shared memory, and copies the sum out.

    The ranks of a core run one after another, three times: they add one half of the array, add the other half, and
    copy the sum out.
    """
    waits = 2 * (costs.inside_latency + costs.staging) + ranks * costs.inside_overhead
    busy = per_core * nbytes / costs.pool_bandwidth
    return Done(waits + 3 * costs.board_switch * (per_core - 1) + busy, 3, float(nbytes), busy)
