"""Collectives on arrays in CUDA memory in two levels: NCCL inside each host, host memory between hosts.

With L ranks on each of H hosts, an array has L parts, one for each place (a rank's number on its host). Ranks with the
same place form a group of H ranks, which moves its data through pinned host memory, in slices.

    allreduce       inside, each part is reduced to its place; between, sums are added; inside, parts are collected
    reduce          the same, but between, the root's host gets the sums, and there the root collects the parts
    broadcast       inside, the root deals out the parts; between, they are broadcast; inside, they are collected
    allgather       between, places exchange their arrays; inside, each rank broadcasts those that it has
    gather          between, the root's host gets the arrays of all places; inside, the root collects them
    scatter         inside, the root deals out the blocks of each place; between, they go to their ranks
    reduce_scatter  inside, the blocks of each place are reduced to it; between, they are reduced to their ranks

The last four also have parts of different lengths. A rank copies 1/L of the array, or of the gathered arrays, to or
from host memory. Without two levels it copies all; in gather and scatter, the root does. Averages of integers are sums
inside, and are divided between hosts, by the number of all ranks.

Invariant: the array of the result holds what a rank has between two phases. More memory of the device, 1/L of the
array, is needed only by reduce on all ranks but the root, by gather and scatter on the ranks of the root's host but the
root, and by reduce_scatter. A run waits on the host for the last phase by NCCL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

from collectives.arrays import cuda
from collectives.arrays.cuda import CudaArray
from collectives.arrays.on_device import DeviceArray
from collectives.calls import pieces
from collectives.calls.external import Side
from collectives.calls.moves import Deadline
from collectives.calls.pieces import Piece
from collectives.calls.staged import StagedCalls
from collectives.calls.streamed import StreamCalls
from collectives.engines.engine import Ranks
from collectives.native import _engine
from collectives.schedule.layout import Layout


class Between(NamedTuple):
    """A communicator in host memory, of the ranks with the same number on their hosts."""

    group: _engine.Group
    staged: StagedCalls


class Levels(NamedTuple):
    """The communicators of calls in two levels: `within` this rank's host, `between` hosts, `side` of all ranks."""

    within: StreamCalls
    between: Between
    side: Side


class Checked(NamedTuple):
    """A collective with checked arrays. `op`: "" if it does not reduce. `root`: -1 if there is none.

    `x`, `out`: None on ranks without an input or a result. `stream`: the CUDA stream that writes the result. `rows`: if
    an array has a part for each rank, the elements of these parts.
    """

    name: str
    x: CudaArray | None
    out: CudaArray | None
    op: str
    root: int
    stream: int
    rows: tuple[int, ...] = ()


class TwoLevelTask:
    """One call. Implements `collectives.engines.Task`."""

    def __init__(self, levels: Levels, layout: Layout, call: Checked) -> None:
        self._levels: Final = levels
        self._layout: Final = layout
        self._call: Final = call

    def run(self, _x: Any, _out: Any, ranks: Ranks) -> Any:
        run = _Run(self._levels, self._layout, self._call, ranks.rank, Deadline(ranks.seconds_left))
        PHASES[self._call.name](run)
        run.wait()
        return None if self._call.out is None else self._call.out.origin


class _Run:
    """One run of a call: what its phases have in common.

    `op`: that of the call; `inner_op`: inside hosts. `divisor`: as in `Shape`, between hosts. `x`, `out`: the arrays,
    with one axis. `counts`: the elements of each part of x. `place`, `host`: of this rank.
    `root_place`, `root_host`: of the root. `rows`: as in `Checked`. `peers`: the ranks with this place, by host.
    """

    def __init__(self, levels: Levels, layout: Layout, call: Checked, rank: int, deadline: Deadline) -> None:
        self.layout: Final = layout
        self.hosts: Final = len(layout.members)
        self.host, self.place = layout.hosts[rank], layout.local_rank(rank)
        self.root_host, self.root_place = (
            (layout.hosts[call.root], layout.local_rank(call.root)) if call.root >= 0 else (-1, -1)
        )
        self.given: Final = None if call.x is None else _flat(call.x)
        self.out: Final = None if call.out is None else _flat(call.out)._replace(stream=call.stream)
        like = self.given or self.out
        assert like is not None
        self.like: Final = like
        divides_once = call.op == "avg" and like.dtype.kind in "iu"
        self.op: Final = call.op
        self.inner_op: Final = "sum" if divides_once else call.op
        self.divisor: Final = layout.size if divides_once else 0
        each = len(layout.members[0])
        ends = [like.size * place // each for place in range(each + 1)]
        self.counts: Final = [b - a for a, b in pairwise(ends)]
        self.rows: Final = call.rows
        self.peers: Final = [ranks[self.place] for ranks in layout.members]
        self._levels: Final = levels
        self._call: Final = call
        self._deadline: Final = deadline
        self._producer = like.stream  # of the next call of NCCL
        self._last: _engine.StreamTicket | None = None
        self._kept: Final[list[DeviceArray]] = []

    @property
    def x(self) -> CudaArray:
        assert self.given is not None
        return self.given

    @property
    def shares(self) -> tuple[int, ...]:
        """The elements of the parts of `peers`."""
        return tuple(self.rows[rank] for rank in self.peers)

    @property
    def is_on_roots_host(self) -> bool:
        return self.host == self.root_host

    @property
    def result(self) -> CudaArray:
        assert self.out is not None
        return self.out

    def part(self, array: CudaArray) -> CudaArray:
        """This rank's part of an array like x."""
        begin = sum(self.counts[: self.place]) * array.dtype.itemsize
        count = self.counts[self.place]
        return array._replace(address=array.address + begin, shape=(count,), stream=self._call.stream)

    def scratch(self, count: int) -> CudaArray:
        """New memory of the device, which can be used again when the run is over."""
        memory = DeviceArray((count,), self.like.dtype, self.like.device)
        self._kept.append(memory)
        return cuda.reading(memory, moved=True)._replace(stream=self._call.stream)

    def inside(self, name: str, planned: Sequence[Piece], written: CudaArray | None) -> None:
        """Let NCCL run its calls on the ranks of this host, all of which come here. `name`: what they amount to."""
        call, within = self._call, self._levels.within
        op = self.inner_op if name == "reduce_scatter" else ""
        size = sum(self.rows) or self.like.size
        operation = within.agreement(name, self.like.dtype, op, 0, 0, f"{call.name} of {size}")
        arrays = [] if written is None else [written]
        keeps = (call.x, call.out, written)
        prepared = within.call(planned, [operation], call.stream, self._producer, arrays, None, keeps, self._deadline)
        self._last = within.issue(prepared, self._deadline.left)
        self._producer = call.stream

    def between(
        self,
        name: str,
        x: CudaArray | None,
        out: CudaArray | None,
        shares: tuple[int, ...] = (),
        places: Sequence[int] = (),
    ) -> None:
        """Run a collective in host memory among the ranks with this rank's place.

        `x`, `out`, `shares`, `places`: as in `StagedCalls.checked`. No shares: of one part. Nothing if it is empty.
        """
        array = x or out
        assert array is not None
        shares = shares or (array.size,)
        if sum(shares):
            between = self._levels.between
            one = between.staged.checked(
                name, self.like, x, out, shares, self._deadline,
                op=self.op, root=self.root_host, places=places, divisor=self.divisor,
            )  # fmt: skip
            one.run(between.group, self._deadline.left)

    def reduce_parts(self, part: CudaArray) -> None:
        """Inside, reduce each part of x to its place, in `part`."""
        if self._is_even:
            planned = pieces.collective("reduce_scatter", self.x, part, len(self.counts), self.inner_op, -1)
        else:
            planned = pieces.reduce_scatterv(self.x, part, self.counts, self.place, self.inner_op)
        self.inside("reduce_scatter", planned, part)

    def collect_parts(self, whole: CudaArray) -> None:
        """Inside, send each rank's part of `whole` to all others."""
        part = self.part(whole)
        if self._is_even:
            planned = pieces.collective("allgather", part, whole, len(self.counts), "", -1)
        else:
            planned = pieces.allgatherv(part, whole, self.counts, self.place)
        self.inside("allgather", planned, whole)

    def wait(self) -> None:
        """Wait on the host until NCCL's last call is complete."""
        if self._last is not None:
            self._last.wait(None)

    @property
    def _is_even(self) -> bool:
        return len({*self.counts}) == 1


def _allreduce(run: _Run) -> None:
    part = run.part(run.result)
    run.reduce_parts(part)
    run.between("allreduce", part, part)
    run.collect_parts(run.result)


def _reduce(run: _Run) -> None:
    part = run.scratch(run.counts[run.place]) if run.out is None else run.part(run.out)
    run.reduce_parts(part)
    here = run.is_on_roots_host
    run.between("reduce", part, part if here else None)
    if here:
        run.inside("gather", pieces.parts_to_root(part, run.out, run.counts, run.root_place), run.out)


def _broadcast(run: _Run) -> None:
    part = run.part(run.result)
    here = run.is_on_roots_host
    if here:
        whole = run.result if run.place == run.root_place else None
        run.inside("scatter", pieces.parts_from_root(part, whole, run.counts, run.root_place), run.result)
    run.between("broadcast", part if here else None, None if here else part)
    run.collect_parts(run.result)


def _allgather(run: _Run) -> None:
    rows, of = _addresses(run.result, run.rows), run.layout
    run.between("allgather", run.x, run.result, run.shares, [rows[rank] for rank in run.peers])
    blocks = [(of.local_rank(rank), rows[rank], rows[rank], run.rows[rank]) for rank in range(of.size)]
    run.inside("allgather", pieces.broadcasts(run.x, blocks, run.place), run.result)


def _gather(run: _Run) -> None:
    if not run.is_on_roots_host:
        run.between("gather", run.x, None, run.shares)
    elif run.place != run.root_place:
        part = run.scratch(sum(run.shares))
        run.between("gather", run.x, part, run.shares)
        run.inside("gather", [*pieces.sends(part, _to_root(run, part))], None)
    else:
        rows = _addresses(run.result, run.rows)
        run.between("gather", run.x, run.result, run.shares, [rows[rank] for rank in run.peers])
        run.inside("gather", [*pieces.recvs(run.result, _of_others(run, rows))], run.result)


def _scatter(run: _Run) -> None:
    if not run.is_on_roots_host:
        run.between("scatter", None, run.result, run.shares)
    elif run.place != run.root_place:
        part = run.scratch(sum(run.shares))
        run.inside("scatter", [*pieces.recvs(part, _to_root(run, part))], part)
        run.between("scatter", part, run.result, run.shares)
    else:
        rows = _addresses(run.x, run.rows)
        run.inside("scatter", [*pieces.sends(run.x, _of_others(run, rows))], None)
        run.between("scatter", run.x, run.result, run.shares, [rows[rank] for rank in run.peers])


def _to_root(run: _Run, part: CudaArray) -> list[tuple[int, int, int]]:
    """The messages between this rank and the root on its host: the root's place, address and elements of each."""
    return [(run.root_place, at, n) for at, n in zip(_addresses(part, run.shares), run.shares, strict=True)]


def _of_others(run: _Run, rows: Sequence[int]) -> list[tuple[int, int, int]]:
    """The same on the root, whose array has these addresses of each rank's part; they begin with the other's place."""
    each = [(place, rank) for ranks in run.layout.members for place, rank in enumerate(ranks)]
    return [(place, rows[rank], run.rows[rank]) for place, rank in each if place != run.place]


def _reduce_scatter(run: _Run) -> None:
    of, shares = run.layout, run.shares
    sums = run.scratch(sum(shares))
    given, made = _addresses(run.x, run.rows), _addresses(sums, shares)
    blocks = [(of.local_rank(rank), given[rank], made[of.hosts[rank]], run.rows[rank]) for rank in range(of.size)]
    run.inside("reduce_scatter", pieces.reductions(run.x, blocks, run.place, run.inner_op), sums)
    run.between("reduce_scatter", sums, run.result, shares)


ROWS: Final = ("allgather", "gather", "scatter", "reduce_scatter")  # an array has a part for each rank
# The phases of each collective that runs in two levels.
PHASES: Final[dict[str, Callable[[_Run], None]]] = {
    "allreduce": _allreduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "allgather": _allgather,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
}


def _flat(array: CudaArray) -> CudaArray:
    return array._replace(shape=(array.size,))


def _addresses(array: CudaArray, counts: Sequence[int]) -> list[int]:
    """The addresses of parts of `array` that have these numbers of elements."""
    return [array.address + n * array.dtype.itemsize for n in accumulate(counts[:-1], initial=0)]
