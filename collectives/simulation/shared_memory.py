"""What ranks of one host do in memory that all of them share, instead of exchanging the messages of a schedule.

Invariant: it is done where the engine does it, see native/src/shm/board_task.cpp, board_by_core.cpp and
pool_task.cpp.
R. L. Graham, G. Shipman: MPI Support for Multi-core Architectures: Optimized Shared Memory Collectives, EuroPVM/MPI
2008.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from collectives.schedule.form import Recv, Reduce, Schedule, Send
from collectives.simulation.cost import Costs
from collectives.simulation.topology import Topology

_ON_BOARD: Final = 4 << 10  # bytes at most, if each rank has a core
_ON_BOARD_CROWDED: Final = 128 << 10
_POOLED: Final = 4 << 10  # bytes at least
_POOLED_WITH_CORES: Final = 8  # ranks at most, if each has a core


@dataclass(frozen=True, slots=True)
class Done:
    """How long it takes, how many turns come one after another, what a rank says, and how long a core is busy."""

    seconds: float
    rounds: int
    sent: float
    busy: float


@dataclass(frozen=True, slots=True)
class Shortcuts:
    """What a schedule allows. `blocks`: of the larger buffer; a rank says `said` of them on a board, 0 if it may not be
    done there, and takes `taken` of each other rank's; `mutual`: all do both."""

    blocks: int
    pooled: bool
    said: int
    taken: int
    mutual: bool
    reduces: bool

    @staticmethod
    def of(schedule: Schedule) -> Shortcuts:
        said, taken = (0, 0) if schedule.flat is None else (chunk.count for chunk in schedule.flat)
        reductions = [step for step in schedule.steps if isinstance(step, Reduce)]
        sends = any(isinstance(step, Send) for step in schedule.steps)
        mutual = sends and any(isinstance(step, Recv | Reduce) for step in schedule.steps)
        blocks = max(*schedule.grid, 1)
        return Shortcuts(blocks, schedule.pooled, said, taken, mutual, bool(reductions))

    def take(self, nbytes: int, ranks: int, topology: Topology, costs: Costs) -> Done | None:
        """None where messages are exchanged after all."""
        if not 1 < ranks <= topology.ranks_per_host:
            return None
        crowd = topology.per_core(ranks)
        if self.said and costs.board > 0:
            if nbytes <= _ON_BOARD_CROWDED and crowd > 1 and ranks > 2 and self._is_added_by_all():
                return _by_core(nbytes, crowd, topology.cores_of(ranks), costs)
            if nbytes <= (_ON_BOARD_CROWDED if crowd > 1 else _ON_BOARD):
                return self._on_board(self.said, nbytes / self.blocks, ranks, crowd, costs)
        many = crowd == 1 and ranks > _POOLED_WITH_CORES
        if self.pooled and costs.pool_bandwidth > 0 and nbytes >= _POOLED and not many:
            return _pooled(nbytes, ranks, crowd, costs)
        return None

    def _is_added_by_all(self) -> bool:
        """All say all that they have, and add up all that is said."""
        return self.mutual and self.reduces and self.said == self.taken == self.blocks

    def _on_board(self, says: int, block: float, ranks: int, crowd: int, costs: Costs) -> Done:
        """Every rank says what it has to and looks at what all others have, in one turn of each."""
        said, taken = says * block, self.taken * block * (ranks - 1)
        if not self.reduces:
            moved = (said + taken) / costs.inside_bandwidth
        else:
            moved = said / costs.inside_bandwidth + taken / costs.reduce_bandwidth
        waits = costs.board + costs.board_overhead * (ranks - 1) + costs.board_switch * (crowd - 1)
        return Done(waits + crowd * moved, 1, said, crowd * moved)


def _by_core(nbytes: int, crowd: int, cores: int, costs: Costs) -> Done:
    """The last rank to come on a core adds up what is said there; each rank then adds the cores' sums."""
    mates, others = crowd - 1, cores - 1
    added = mates + crowd * others  # one rank's array, to another or to a sum
    moved = mates + (0 if others else crowd)
    busy = nbytes * (added / costs.reduce_bandwidth + moved / costs.inside_bandwidth)
    waits = costs.board + costs.board_overhead * (mates + others) + costs.board_switch * mates
    return Done(waits + busy, 1, float(nbytes), busy)


def _pooled(nbytes: int, ranks: int, crowd: int, costs: Costs) -> Done:
    """Every rank adds all it brings and gets all of the sum; nothing else is moved.

    The two halves begin on different cores, change places once, and are got: three turns of each core's ranks.
    """
    waits = 2 * (costs.inside_latency + costs.staging) + ranks * costs.inside_overhead
    busy = crowd * nbytes / costs.pool_bandwidth
    return Done(waits + 3 * costs.board_switch * (crowd - 1) + busy, 3, float(nbytes), busy)
