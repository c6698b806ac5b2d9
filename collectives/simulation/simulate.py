"""Predicts the time of a collective: simulates its schedules on a topology, with costs for all resources.

Invariant: the simulated steps and dependencies are those that the engine runs. Steps are simulated in rounds: a step is
in a later round than all steps that it waits for, and the steps of one round are served in the order in which they are
ready.

There are two simulations over the same network. Module `everyone` simulates all ranks. Module `lanes` simulates only
some ranks of a group in which all ranks have the same schedule. Module `families` finds such groups by comparing
schedules, not by the algorithm's name.
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
from collectives.simulation.arranged import Arranged
from collectives.simulation.cost import Costs
from collectives.simulation.everyone import Everyone, MismatchError
from collectives.simulation.families import families, singles
from collectives.simulation.lanes import Lanes
from collectives.simulation.network import Network
from collectives.simulation.outline import Outline
from collectives.simulation.relations import HOSTS, SHIFT, XOR, Ranks
from collectives.simulation.shared_memory import Shortcuts
from collectives.simulation.topology import Topology

# Sizes of a small group whose schedules are all compared; if equal, a large group's schedules count as equal too.
_FEW: Final = (12, 8, 9, 7)
_FEW_LOCAL: Final = 3  # most ranks of each host of this small group
_SMALL: Final = 64  # ranks; a group of so many takes about a megabyte
_MOST_STEPS: Final = 3_000_000  # steps and peers of all schedules that are computed
_PATIENCE: Final = 60  # seconds to compute schedules
_MOST_MESSAGES: Final = 16_000_000
_MOST_BLOCKS: Final = 30_000_000  # blocks that the steps of all families use
_MOST_TIMES: Final = 600_000_000  # steps times ranks that `lanes` simulates


class TooLargeError(ValueError):
    """Raised if the group is too large to simulate this algorithm for it; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted time of one call of a collective, and what limits it.

    - `seconds`: the time
    - `rounds`: the number of messages in the longest chain in which each message depends on the previous one
    - `sent`: the bytes that one rank sends, namely the rank that sends most
    - `share`: the fraction of the time for which the busiest resource, such as the network cards, is busy
    - `bottleneck`: the name of this resource; "latency" if `share` is below one half
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
        """Bus bandwidth in bytes per second, as in nccl-tests: comparable between collectives and sizes of groups."""
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
    """Predicts the time of one call of the collective of `algorithm` among `ranks` ranks.

    `nbytes`: the size in bytes of a rank's input or output array, whichever is larger. The array is divided into equal
    blocks, which may have a fractional number of bytes. `topology`: hosts and switches; None for one rank on each host.
    `costs`: latencies and bandwidths; None for the defaults. `symmetric`: simulate ranks with like schedules together,
    which is faster; if False, simulate each rank by itself.

    Raises ValueError if the algorithm does not support this number of ranks; TooLargeError if the simulation would take
    too long or too much memory; VerificationError if sends and receives do not match.
    """
    if nbytes < 0:
        raise ValueError(f"{nbytes} is no number of bytes")
    topology, costs = topology or Topology(), costs or Costs()
    if ranks < topology.ranks_per_host:
        topology = replace(topology, ranks_per_host=max(1, ranks))
    with _no_collections():
        per_host = topology.ranks_per_host if algorithm.hosts else 0
        group_of = _small_group if ranks <= _SMALL else _large_group
        group = group_of(algorithm, ranks, root, per_host, symmetric)
        crowd = topology.per_core(ranks)
        costs = costs.holding(float(nbytes) * crowd)
        done = group.shortcuts.replaced(nbytes, ranks, topology, costs)
        if done is not None:
            after, rounds, sent, name, busy = done.seconds, done.rounds, done.sent, "cores", done.busy
        else:
            play = group.play if isinstance(group.play, Everyone) else _lanes(group.play, topology.period)
            network = Network(topology, costs, play.lanes if isinstance(play, Lanes) else ranks)
            block = nbytes / group.shortcuts.blocks
            played = play.play(network, block)
            after = costs.stagger * (crowd * (crowd - 1) // 2) + played.seconds
            rounds, sent = played.rounds, play.sent * block
            busiest = max(network.resources, key=lambda resource: float(resource.busy.max(initial=0.0)))
            name, busy = busiest.name, float(busiest.busy.max(initial=0.0))
    seconds = costs.call + after
    share = busy / seconds if seconds else 0.0
    bottleneck = name if share >= 0.5 else "latency"
    return Prediction(algorithm.collective, algorithm.name, ranks, nbytes, seconds, rounds, sent, bottleneck, share)


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    play: Everyone | Arranged
    shortcuts: Shortcuts


def _group(algorithm: Algorithm, size: int, root: int, per_host: int, symmetric: bool) -> _Group:
    if size < 1 or not algorithm.sizes(size):
        raise ValueError(f"not for {size} rank{'s' * (size != 1)}")
    try:
        return _prepare(algorithm, size, root, per_host, symmetric, whole=True)
    except MismatchError:  # one message of its sender may be two of its receiver
        return _prepare(algorithm, size, root, per_host, symmetric, whole=False)


# Groups are cached, because predictions for several sizes, costs or topologies use each algorithm's group again.
_small_group = lru_cache(maxsize=64)(_group)
_large_group = lru_cache(maxsize=4)(_group)


def _prepare(algorithm: Algorithm, size: int, root: int, per_host: int, symmetric: bool, whole: bool) -> _Group:
    layout = even(size, per_host) if per_host else None
    ranks = Ranks(size, per_host or 1)
    made, began = 0, monotonic()

    @lru_cache(maxsize=4096)
    def outline(rank: int) -> Outline:
        nonlocal made
        if monotonic() - began > _PATIENCE:
            raise TooLargeError(f"too large: {_PATIENCE} seconds were not enough to make the schedules")
        found = Outline(algorithm((rank + root) % size, size, root, layout), whole, ranks.per_host)
        made += len(found.schedule.steps) + found.flat_peers.size
        if made > _MOST_STEPS:
            raise TooLargeError(f"too large: {size} ranks that do different things")
        return found

    shortcuts = Shortcuts.of(outline(0).schedule)
    if not symmetric:
        return _Group(_one_by_one([outline(rank) for rank in range(size)], root), shortcuts)
    found = families(outline, ranks)
    messages = sum(family.constants.size * len(family.members) for family in found) // 2
    relation = found[0].whole if len(found) == 1 else None
    if relation == XOR or (relation in (SHIFT, HOSTS) and _uniform(algorithm, ranks.per_host)):
        return _Group(Arranged(found[0], ranks), shortcuts)
    touched = sum(int(family.outline.forms[:, 2].sum()) for family in found)
    if messages > _MOST_MESSAGES or touched > _MOST_BLOCKS:
        raise TooLargeError(f"too large: {messages} messages")
    try:
        return _Group(Everyone(found, ranks, root), shortcuts)
    except MismatchError:
        return _Group(_one_by_one([outline(rank) for rank in range(size)], root), shortcuts)


def _lanes(arranged: Arranged, period: int) -> Lanes:
    """The simulation of the ranks of one period of the topology, or of all ranks if their peers do not repeat so."""
    size = arranged.ranks.size
    repeats = size % period == 0 and (arranged.relation != XOR or period & (period - 1) == 0)
    lanes = period if repeats else size
    if arranged.largest * lanes > _MOST_MESSAGES or len(arranged.forms) * lanes > _MOST_TIMES:
        messages = arranged.ends.constant.size * size // 2
        raise TooLargeError(f"too large: {messages} messages, {lanes} ranks that differ in place")
    return Lanes(arranged, lanes)


def _uniform(algorithm: Algorithm, per_host: int) -> bool:
    """Whether all ranks have the same schedule except for the peers' ranks; compares them in one small group."""
    per = min(per_host, _FEW_LOCAL)
    size = next((hosts * per for hosts in _FEW if algorithm.sizes(hosts * per)), 1)
    layout = even(size, per) if algorithm.hosts else None
    outlines = [Outline(algorithm(rank, size, 0, layout), per_host=per) for rank in range(size)]
    return len(families(outlines.__getitem__, Ranks(size, per))) == 1


def _one_by_one(outlines: list[Outline], root: int) -> Everyone:
    Group([o.schedule for o in sorted(outlines, key=lambda o: o.schedule.rank)])  # its error names ranks
    return Everyone(singles(outlines), Ranks(len(outlines)), root)


@contextmanager
def _no_collections() -> Iterator[None]:
    """A context in which Python's garbage collector is off.

    The collector would take half of the simulation's time and free nothing: no object is part of a reference cycle.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
