"""The time of a collective: its schedules, simulated over a topology with costs for all resources.

Invariant: the simulated steps and dependencies are those that the engine runs. The order is that of rounds: a step
comes after all steps that it waits for, and the steps of one round are served in the order in which they are ready.

There are two simulations over the same network. `everyone` has all ranks' steps in arrays. `lanes` is for groups in
which all ranks have the same schedule, which is found from the schedules, not by name (see `outline`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from time import monotonic
from typing import Final

from collectives.schedule.algorithm import Algorithm
from collectives.schedule.group import Group
from collectives.schedule.layout import even
from collectives.simulation.cost import Costs
from collectives.simulation.everyone import Everyone, MismatchError
from collectives.simulation.lanes import Lanes
from collectives.simulation.network import Network
from collectives.simulation.outline import SHIFT, XOR, Outline, families, singles
from collectives.simulation.shared_memory import Shortcuts
from collectives.simulation.topology import Topology

# Number of ranks whose schedules are all compared before those of a large group count as alike.
_FEW: Final = (12, 8, 9, 7)
_SMALL: Final = 64  # ranks of a group that takes less than a megabyte or so
_MOST_STEPS: Final = 3_000_000  # and peers, of schedules that are made
_PATIENCE: Final = 60  # seconds to make them
_MOST_MESSAGES: Final = 16_000_000
_MOST_BLOCKS: Final = 30_000_000  # that steps whose dependencies have to be found touch
_MOST_TIMES: Final = 600_000_000  # steps times ranks that are played in lanes


class TooLargeError(ValueError):
    """The group is too large for this algorithm to be simulated; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction for one call.

    `rounds`: messages that depend on each other. `sent`: bytes of the rank that sends most. `bottleneck`: the resource
    that was busy longest, and `share` for which part of the time; "latency" if none was busy for half of it.
    """

    collective: str
    algorithm: str
    ranks: int
    nbytes: int
    seconds: float
    rounds: int
    sent: float
    bottleneck: str
    share: float

    @property
    def busbw(self) -> float:
        """Bytes a second, scaled as in nccl-tests so that collectives and rank counts can be compared."""
        others = (self.ranks - 1) / self.ranks
        once = dict.fromkeys(("broadcast", "reduce", "scan", "exscan"), 1.0)
        factor = {"allreduce": 2 * others, "barrier": 0.0, **once}.get(self.collective, others)
        return factor * self.nbytes / self.seconds if self.seconds else 0.0


def simulate(
    algorithm: Algorithm,
    ranks: int,
    nbytes: int,
    topology: Topology | None = None,
    costs: Costs | None = None,
    root: int = 0,
    *,
    symmetric: bool = True,
) -> Prediction:
    """Predict one call of `nbytes`, the size of the larger of the two arrays, input and output.

    Blocks are `nbytes` in equal parts, whole bytes or not. `symmetric=False` simulates the schedules of all ranks one
    by one. ValueError for a number of ranks that the algorithm does not support; TooLargeError; VerificationError for
    schedules that do not fit together.
    """
    if nbytes < 0:
        raise ValueError(f"{nbytes} is no number of bytes")
    topology, costs = topology or Topology(), costs or Costs()
    if ranks < topology.ranks_per_host:
        topology = replace(topology, ranks_per_host=max(1, ranks))
    with _no_collections():
        per_host = topology.ranks_per_host if algorithm.hosts else 0
        group_of = _small_group if ranks <= _SMALL else _large_group
        group = group_of(algorithm, ranks, root, topology.period, per_host, symmetric)
        crowd = topology.per_core(ranks)
        costs = costs.holding(float(nbytes) * crowd)
        done = group.shortcuts.replaced(nbytes, ranks, topology, costs)
        if done is not None:
            after, rounds, sent, name, busy = done.seconds, done.rounds, done.sent, "cores", done.busy
        else:
            network = Network(topology, costs, group.play.lanes if isinstance(group.play, Lanes) else ranks)
            block = nbytes / group.shortcuts.blocks
            played = group.play.play(network, block)
            after = costs.stagger * (crowd * (crowd - 1) // 2) + played.seconds
            rounds, sent = played.rounds, group.play.sent * block
            busiest = max(network.resources, key=lambda resource: float(resource.busy.max(initial=0.0)))
            name, busy = busiest.name, float(busiest.busy.max(initial=0.0))
    seconds = costs.call + after
    share = busy / seconds if seconds else 0.0
    bottleneck = name if share >= 0.5 else "latency"
    return Prediction(algorithm.collective, algorithm.name, ranks, nbytes, seconds, rounds, sent, bottleneck, share)


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    play: Everyone | Lanes
    shortcuts: Shortcuts


def _group(algorithm: Algorithm, size: int, root: int, period: int, per_host: int, symmetric: bool) -> _Group:
    if size < 1 or not algorithm.sizes(size):
        raise ValueError(f"not for {size} rank{'s' * (size != 1)}")
    try:
        return _prepare(algorithm, size, root, period, per_host, symmetric, whole=True)
    except MismatchError:  # what is one message to its sender may be two to its receiver
        return _prepare(algorithm, size, root, period, per_host, symmetric, whole=False)


# Predictions for several sizes, or costs, go through all algorithms again and again: their groups are kept.
_small_group = lru_cache(maxsize=64)(_group)
_large_group = lru_cache(maxsize=4)(_group)


def _prepare(
    algorithm: Algorithm, size: int, root: int, period: int, per_host: int, symmetric: bool, whole: bool
) -> _Group:
    layout = even(size, per_host) if per_host else None
    made, began = 0, monotonic()

    @lru_cache(maxsize=4096)
    def outline(rank: int) -> Outline:
        nonlocal made
        if monotonic() - began > _PATIENCE:
            raise TooLargeError(f"too large: {_PATIENCE} seconds were not enough to make the schedules")
        found = Outline(algorithm((rank + root) % size, size, root, layout), whole)
        made += len(found.schedule.steps) + found.flat_peers.size
        if made > _MOST_STEPS:
            raise TooLargeError(f"too large: {size} ranks that do different things")
        return found

    shortcuts = Shortcuts.of(outline(0).schedule)
    if not symmetric:
        return _Group(_one_by_one([outline(rank) for rank in range(size)], root), shortcuts)
    found = families(outline, size, per_host or 1)
    messages = sum(family.constants.size * len(family.members) for family in found) // 2
    if len(found) == 1 and found[0].whole in (SHIFT, XOR):
        repeats = size % period == 0 and (found[0].whole == SHIFT or period & (period - 1) == 0)
        if found[0].whole == XOR or _uniform(algorithm):
            lanes = Lanes(found[0], size, period if repeats else size)
            if lanes.largest > _MOST_MESSAGES or len(lanes.shapes) * lanes.lanes > _MOST_TIMES:
                raise TooLargeError(f"too large: {messages} messages, {lanes.lanes} ranks that differ in place")
            return _Group(lanes, shortcuts)
    touched = sum(int(family.outline.forms[:, 2].sum()) for family in found)
    if messages > _MOST_MESSAGES or touched > _MOST_BLOCKS:
        raise TooLargeError(f"too large: {messages} messages")
    try:
        return _Group(Everyone(found, size, root), shortcuts)
    except MismatchError:
        return _Group(_one_by_one([outline(rank) for rank in range(size)], root), shortcuts)


def _uniform(algorithm: Algorithm) -> bool:
    """Whether all ranks have the same schedule, in a group so small that all are compared."""
    size = next((size for size in _FEW if algorithm.sizes(size)), 1)
    return len(families(lambda rank: Outline(algorithm(rank, size)), size)) == 1


def _one_by_one(outlines: list[Outline], root: int) -> Everyone:
    Group([o.schedule for o in sorted(outlines, key=lambda o: o.schedule.rank)])  # says who has no partner
    return Everyone(singles(outlines), len(outlines), root)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Millions of objects are created and none is part of a cycle: garbage collection would take half of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
