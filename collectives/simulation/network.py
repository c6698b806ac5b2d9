"""The resources that messages use and wait for: cores, memory, network cards, links between switches.

Invariant: shared resources serve requests slice by slice, in the order in which the requests become ready, and never
exceed their bandwidth. This module knows nothing of schedules.

The engine moves data in slices. So a message or step has two times: when its first slice is ready, and when its last
byte is ready. A step that needs the data starts when the first slice is ready. The step ends at least a slice's time
after the last byte is ready. Links buffer everything: a sender never waits for its receiver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from collectives.simulation.cost import Costs
from collectives.simulation.steps import RECV, REDUCE
from collectives.simulation.topology import Topology

Array = npt.NDArray[Any]

_LINE: Final = 56  # bytes of a message that fit into one cache line, beside its description
_SIDE_BY_SIDE: Final = 32  # the first requests of each queue are served for all queues at once, others queue by queue


class Resource:
    """Hardware of one kind, such as all cores, that serves requests to move or reduce data, slice by slice.

    All times are in seconds. Each array has an item for each core (or card, and so on). `free[0]`: when the first
    slices of all earlier requests are done, so that another first slice can be served. `free[1]`: when all earlier
    requests are done entirely. `busy`: for how long the core has worked in total.
    """

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.free = np.zeros((2, count))
        self.busy = np.zeros(count)
        self._stamp = np.zeros(count, np.int64)

    def serve(self, which: Array, ready: Array, heads: Array, takes: Array, tie: Array | None = None) -> Array:
        """Returns when each request starts: row 0 after the first slices of earlier requests, row 1 after all slices.

        All times are in seconds. `which`: the index of the core (or card, and so on) that serves each request. `ready`:
        when the request is made. `heads`: for how long its first slice is served. `takes`: for how long the whole
        request is served. If several requests are made at the same time, the request with the lowest `tie` is served
        first; without `tie`, the request that is first in the array.
        """
        if self._are_different(which):
            start = np.maximum(ready, self.free.take(which, axis=1))
            self.free[0, which] = start[0] + heads
            self.free[1, which] = start[1] + takes
            self.busy[which] += takes
            return start
        order = np.lexsort((ready, which) if tie is None else (tie, ready, which))
        which, ready = which[order], ready[order]
        work = np.stack((heads[order], takes[order]))
        begins = np.flatnonzero(np.concatenate(([True], which[1:] != which[:-1])))
        lengths = np.diff(np.append(begins, which.size))
        start = np.empty(work.shape)
        free = self.free[:, which[begins]]
        queues = np.arange(begins.size)
        for k in range(_SIDE_BY_SIDE):
            at = begins[queues] + k
            start[:, at] = now = np.maximum(ready[at], free[:, queues])
            free[:, queues] = now + work[:, at]
            queues = queues[lengths[queues] > k + 1]
            if not queues.size:
                break
        for queue in queues.tolist():
            rest = slice(int(begins[queue]) + _SIDE_BY_SIDE, int(begins[queue] + lengths[queue]))
            before = np.cumsum(work[:, rest], axis=1) - work[:, rest]
            waited = np.maximum(np.maximum.accumulate(ready[rest] - before, axis=1), free[:, queue, None])
            start[:, rest] = waited + before
            free[:, queue] = start[:, rest][:, -1] + work[:, rest][:, -1]
        self.free[:, which[begins]] = free
        self.busy[which[begins]] += np.add.reduceat(work[1], begins)
        result = np.empty(work.shape)
        result[:, order] = start
        return result

    def _are_different(self, which: Array) -> bool:
        if (which[1:] > which[:-1]).all():
            return True
        numbers = np.arange(which.size)
        self._stamp[which] = numbers
        return bool((self._stamp[which] == numbers).all())


@dataclass(slots=True, eq=False)
class _Stage:
    resource: Resource
    which: Array
    heads: Array
    takes: Array
    tie: Array
    part: Array | None  # the messages between hosts that pass this stage; None: all


@dataclass(slots=True, eq=False)
class Sends:
    """The sends of one round of messages, and the hardware through which the messages pass, as arrays.

    Times are in seconds. Some arrays have an item for each send. Other arrays have an item for each message, because a
    send may have several receivers. `task`: for each message, the index of its send.
    """

    core: Array
    busy: Array  # time of the core
    head: Array  # until the first slice is out
    tail: Array  # time of a slice
    task: Array
    ahead: Array  # from the send's start until the message's first slice is out
    inside: Array
    across: Array
    memory: Array
    memory_heads: Array
    memory_takes: Array
    order: Array  # of messages inside a host: which is served first
    way: Array  # of messages inside a host: latency
    stages: list[_Stage]
    wire: Array  # of messages between hosts: latency
    slices: Array  # of messages between hosts: a slice's time on the wire
    whole: Array  # of messages between hosts: the whole message's time on the wire


@dataclass(slots=True, eq=False)
class Takes:
    """The steps that receive, reduce or copy data in one round of messages: arrays with an item for each step."""

    core: Array
    busy: Array
    head: Array
    tail: Array


class Network:
    """The simulated hardware that ranks use: cores, memory, network cards, and links between switches.

    Only the first `ranks` ranks are simulated. The hosts and switches of later ranks repeat those of the first, so a
    later rank is treated as the simulated rank in the same place.
    """

    def __init__(self, topology: Topology, costs: Costs, ranks: int) -> None:
        self.topology, self.costs, self._ranks = topology, costs, ranks
        per = topology.ranks_per_host
        hosts = -(-ranks // per)
        self._cores = min(topology.cores or per, per)
        self._core = Resource("core", hosts * self._cores)
        self._memory = Resource("memory", hosts)
        self._out = Resource("network card", hosts)
        self._in = Resource("network card", hosts)
        self._up: list[Resource] = []
        self._down: list[Resource] = []
        for number, span in enumerate(topology.spans, 1):
            for side in (self._up, self._down):
                side.append(Resource(f"switch level {number}", -(-hosts // span)))

    @property
    def resources(self) -> list[Resource]:
        return [self._core, self._memory, self._out, self._in, *self._up, *self._down]

    def is_inside(self, source: Array, target: Array) -> Array:
        """For each index i: whether the ranks source[i] and target[i] are on one host."""
        per = self.topology.ranks_per_host
        found: Array = source // per == target // per
        return found

    def sends(self, rank: Array, nbytes: Array, task: Array, target: Array, turn: Array, order: Array) -> Sends:
        """Describes the sends of one round, and the hardware through which their messages pass.

        `rank` and `nbytes` have an item for each send: the rank that sends, and the size in bytes. The other arrays
        have an item for each message, because a send may have several receivers:

        - `task`: the index of its send
        - `target`: the rank that receives it
        - `turn`: its number among the messages of its send
        - `order`: of messages of one rank that are ready at once, the lowest is served first

        If messages of several ranks are ready at once, hardware on the senders' side serves the lowest sending rank
        first. Hardware on the receivers' side serves the lowest receiving rank first.
        """
        costs, per = self.costs, self.topology.ranks_per_host
        source = rank[task]
        inside = self.is_inside(source, target)
        nearby, away = np.flatnonzero(inside), np.flatnonzero(~inside)
        copying = 1 / costs.inside_bandwidth
        cut = np.minimum(nbytes, costs.slice)
        publishes = np.zeros(rank.size, bool)
        publishes[task[nearby]] = True  # one copy for all receivers that share memory
        overhead = np.where(inside, costs.inside_overhead, costs.overhead)
        everything = np.bincount(task, overhead, rank.size)
        tail = np.where(publishes, cut * copying, 0.0)
        ahead = overhead * (turn + 1) + np.where(inside, tail[task], 0.0)
        size = nbytes[task]
        mine, theirs = source[away] // per, target[away] // per
        width = int(order.max(initial=0)) + 1
        departing = source * width + order
        arriving = target % self._ranks * width + order
        card = costs.bandwidth * self.topology.cards
        between, heads = size[away] / card, np.minimum(size[away], costs.slice) / card
        stages, hops = self._stages(source[away], target[away], size[away], departing[away], arriving[away])
        return Sends(
            core=self._core_of(rank),
            busy=everything + np.where(publishes, nbytes * copying, 0.0),
            head=everything + tail,
            tail=tail,
            task=task,
            ahead=ahead,
            inside=nearby,
            across=away,
            memory=source[nearby] // per,
            memory_heads=costs.inside_gap + np.minimum(size[nearby], costs.slice) / costs.memory_bandwidth,
            memory_takes=costs.inside_gap + size[nearby] / costs.memory_bandwidth,
            order=departing[nearby],
            way=costs.inside_latency + np.where(size[nearby] > _LINE, costs.staging, 0.0),
            stages=[
                _Stage(self._out, mine, heads, between, departing[away], None),
                *stages,
                _Stage(self._in, theirs % self._in.busy.size, heads, between, arriving[away], None),
            ],
            wire=costs.latency + costs.hop * hops,
            slices=np.minimum(size[away], costs.slice) / costs.bandwidth,
            whole=size[away] / costs.bandwidth,
        )

    def _stages(
        self, source: Array, target: Array, nbytes: Array, departing: Array, arriving: Array
    ) -> tuple[list[_Stage], Array]:
        """The links between switches that messages pass, and the number of switches on each message's path."""
        ups: list[_Stage] = []
        downs: list[_Stage] = []
        hops = np.ones(source.size)
        per = self.topology.ranks_per_host
        for level, (span, share) in enumerate(zip(self.topology.spans, self.topology.shares, strict=True)):
            mine, theirs = source // (per * span), target // (per * span)
            passing = np.flatnonzero(mine != theirs)
            hops[passing] += 2
            pace = 1 / (share * self.costs.bandwidth)
            takes, heads = nbytes[passing] * pace, np.minimum(nbytes[passing], self.costs.slice) * pace
            up, down = self._up[level], self._down[level]
            ups.append(_Stage(up, mine[passing], heads, takes, departing[passing], passing))
            downs.append(_Stage(down, theirs[passing] % down.busy.size, heads, takes, arriving[passing], passing))
        return [stage for stage in (*ups, *reversed(downs)) if stage.which.size], hops

    def takes(self, rank: Array, kind: Array, nbytes: Array, operands: Array, near: Array, far: Array) -> Takes:
        """Describes the steps of one round that receive, reduce or copy data; each array has an item for each step.

        `near`: how many messages the step receives from its own host. `far`: how many it receives from other hosts.
        """
        costs = self.costs
        reduces = kind == REDUCE
        copies = np.where(kind == RECV, near > 0, ~reduces)  # the network card writes messages from other hosts
        pace = np.where(copies, 1 / costs.inside_bandwidth, 0.0)
        pace = np.where(reduces, (operands - 1) / costs.reduce_bandwidth, pace)
        overhead = near * costs.inside_overhead + far * costs.overhead
        if costs.switch:
            waiting = np.flatnonzero(near + far)
            _, first = np.unique(rank[waiting], return_index=True)  # a rank waits once a round
            chosen = waiting[first]
            overhead[chosen] += costs.switch * self._neighbours(rank[chosen])
        tail = np.minimum(nbytes, costs.slice) * pace
        return Takes(self._core_of(rank), overhead + nbytes * pace, overhead + tail, tail)

    def depart(
        self, sends: Sends, first: Array, last: Array, tie: Array | None = None
    ) -> tuple[Array, Array, Array, Array]:
        """Simulates the sends of one round; returns four arrays of times in seconds.

        The first two have an item for each message: when its first slice arrives, and when its last byte arrives. The
        other two have an item for each send: when its first slice has left, and when its last byte has left. `first`
        and `last`: when the first slice and the last byte of each send are ready. Of sends of one core that are ready
        at once, the send with the lowest `tie` is served first.
        """
        turn, start = self._core.serve(sends.core, first, sends.head, sends.busy, tie)
        out = np.maximum(start + sends.busy, last + sends.tail)
        begun, ended = turn[sends.task] + sends.ahead, out[sends.task]
        here = sends.inside
        if here.size:
            takes = sends.memory_takes
            turns, at = self._memory.serve(sends.memory, begun[here], sends.memory_heads, takes, sends.order)
            begun[here] = turns + sends.way
            ended[here] = np.maximum(ended[here], at + takes) + sends.way
        there = sends.across
        if there.size:
            at, end = begun[there], ended[there] + sends.slices
            for number, stage in enumerate(sends.stages):
                part, serve = stage.part, stage.resource.serve
                if part is None:
                    at, work = serve(stage.which, at, stage.heads, stage.takes, stage.tie)
                    end = np.maximum(end, work + stage.takes)
                else:
                    at[part], work = serve(stage.which, at[part], stage.heads, stage.takes, stage.tie)
                    end[part] = np.maximum(end[part], work + stage.takes)
                if number == 0:
                    end = np.maximum(end, work + sends.whole)
                    np.maximum.at(out, sends.task[there], end)
            begun[there] = at + sends.slices + sends.wire
            ended[there] = end + sends.wire
        return begun, ended, turn + sends.head, out

    def perform(self, takes: Takes, first: Array, last: Array, tie: Array | None = None) -> tuple[Array, Array]:
        """Simulates steps that receive, reduce or copy data; returns two arrays of times in seconds, by step.

        The first array says when the first slice of each step's data is done, the second when its last byte is done.
        `first` and `last`: when the first slice and the last byte of the data are ready. `tie`: the order of steps that
        are ready at the same time, lowest first; None for the order of the array.
        """
        turn, start = self._core.serve(takes.core, first, takes.head, takes.busy, tie)
        return turn + takes.head, np.maximum(start + takes.busy, last + takes.tail)

    def _neighbours(self, rank: Array) -> Array:
        """The number of other ranks on the same core."""
        per = self.topology.ranks_per_host
        place = rank % per % self._cores
        others: Array = (per - 1 - place) // self._cores
        return others

    def _core_of(self, rank: Array) -> Array:
        per = self.topology.ranks_per_host
        core: Array = rank // per * self._cores + rank % per % self._cores
        return core
