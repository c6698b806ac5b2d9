"""Algorithms for several hosts: each byte crosses the network only as often as with one rank on each host.

Ranks of a host exchange data through its memory. There are two kinds of algorithms for the exchange between hosts. In
one kind, all ranks of a host take part, each with its own part of the data, so that several ranks use the network at
once. In the other kind, only one rank of each host, the *leader*, takes part, so that there are few messages. Hosts may
have different numbers of ranks, and the ranks of a host need not be consecutive.

A. Sergeev, M. Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", arXiv 1802.05799, 2018; K.
Hasanov, A. Lastovetsky, "Hierarchical redesign of classic MPI reduction algorithms", J. Supercomputing 73(2), 2017.

In formulas h is the number of hosts, and l the number of ranks on the host with the most ranks. alpha and beta are the
costs of a message between hosts, and of each of its bytes. Rounds include those of messages within hosts; times do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from collectives.algorithms import circulant, recursive_doubling
from collectives.algorithms.binomial import node
from collectives.algorithms.registry import algorithm
from collectives.schedule.form import Builder, Chunk, Operand, Schedule
from collectives.schedule.layout import Layout


@dataclass(frozen=True, slots=True)
class Place:
    """The place of the rank `rank` among the hosts: its host, and which rank of each host handles which data.

    `layout` says which ranks share a host.
    """

    rank: int
    layout: Layout

    @property
    def host(self) -> int:
        return self.layout.hosts[self.rank]

    @property
    def hosts(self) -> int:
        return len(self.layout.members)

    @property
    def beside(self) -> tuple[int, ...]:
        """The other ranks of this host."""
        return self.layout.beside(self.rank)

    @property
    def leaders(self) -> list[int]:
        return [ranks[0] for ranks in self.layout.members]

    def local(self, own: Chunk) -> list[Operand]:
        """Returns a reduction's operands on this host, in rank order: `own`, this rank's data, and others' messages."""
        return [own if r == self.rank else r for r in self.layout.members[self.host]]

    # --- data in equal parts: on each host, one rank owns a part

    @property
    def parts(self) -> int:
        """The number of parts into which the data is divided: the largest number of ranks on any host.

        On a host with fewer ranks, one rank may handle several parts.
        """
        return self.layout.largest

    def owner(self, host: int, part: int, parts: int) -> int:
        ranks = self.layout.members[host % self.hosts]
        return ranks[part * len(ranks) // parts]

    def parts_of(self, rank: int) -> list[int]:
        ranks, at = len(self.layout.members[self.host]), self.layout.local_rank(rank)
        return [*range(-(-at * self.parts // ranks), -(-(at + 1) * self.parts // ranks))]

    # --- one block for each rank: on each other host, one rank owns the block

    def block_owner(self, host: int, rank: int) -> int:
        """Returns the rank of host number `host` that handles the block of the rank `rank`.

        On its own host, `rank` handles its block itself.
        """
        return self.owner(host, self.layout.local_rank(rank), len(self.layout.members[self.layout.hosts[rank]]))

    def ranks_served(self, host: int, owner: int) -> list[int]:
        """Returns the ranks of host number `host` whose blocks the rank `owner` of this host handles."""
        here, there = self.layout.members[self.host], self.layout.members[host % self.hosts]
        at = self.layout.local_rank(owner)
        return [*there[-(-at * len(there) // len(here)) : -(-(at + 1) * len(there) // len(here))]]


def _send_beside(b: Builder, place: Place, chunk: Chunk) -> None:
    if place.beside:
        b.send(place.beside, chunk)


# --- every rank sends to other hosts


@algorithm("allreduce", hosts=True, in_place=True, uneven=True)
def hierarchical_ring(rank: int, size: int, layout: Layout) -> Schedule:
    """Allreduce: each part of the data goes twice around the ring of hosts; one rank of each host handles the part.

    On every host, all ranks send their data of a part to the rank of their host that handles this part. When the part
    passes the second time, this rank sends it to the others on its host. For h hosts of any size, the largest with l
    ranks, and n bytes of data: 2h rounds; a host sends 2n(h-1)/h bytes, of which a rank sends 2n(h-1)/(hl) bytes. If a
    message to another host costs alpha, each of its bytes beta, and a message within a host nothing, the time is 2(h-1)
    alpha + 2n(h-1)/h beta.
    """
    place = Place(rank, layout)
    parts, hosts, host = place.parts, place.hosts, place.host
    b = Builder("allreduce", "hierarchical_ring", rank, size, grid=(parts * hosts, parts * hosts))
    if size == 1:
        b.copy(b.out(0, parts), b.inp(0, parts))
    mine = place.parts_of(rank)
    beside = [(peer, part) for peer in place.beside for part in place.parts_of(peer)]
    for t in range(hosts):
        for peer, part in beside:
            b.send(peer, b.inp(part * hosts + (host - t) % hosts))
    for t in range(hosts):
        for part in mine:
            block = part * hosts + (host - t) % hosts
            partial = b.inp(block)
            operands = place.local(partial)
            if t:
                operands.insert(0, place.owner(host - 1, part, parts))
            if len(operands) > 1:
                partial = b.out(block)
                b.reduce(partial, *operands, final=t == hosts - 1)
            if t < hosts - 1:
                b.send(place.owner(host + 1, part, parts), partial)
    for t in range(hosts):
        for part in mine:
            total = b.out(part * hosts + (host + 1 - t) % hosts)
            if t:
                b.recv(place.owner(host - 1, part, parts), total)
            if t < hosts - 1:
                b.send(place.owner(host + 1, part, parts), total)
            _send_beside(b, place, total)
    beside = [(peer, part) for peer in reversed(place.beside) for part in place.parts_of(peer)]
    for t in range(hosts):
        for peer, part in beside:
            b.recv(peer, b.out(part * hosts + (host + 1 - t) % hosts))
    return b.build()


@algorithm("allreduce", hosts=True, in_place=True, uneven=True)
def hierarchical_circulant(rank: int, size: int, layout: Layout) -> Schedule:
    """Allreduce: each rank of a host handles a part of the data, and reduces it with one rank of every other host.

    For h hosts of any size, the largest with l ranks, and n bytes of data: 2 ceil(log2 h) + 2 rounds; a host sends
    2n(h-1)/h bytes, of which a rank sends 2n(h-1)/(hl) bytes. If a message to another host costs alpha, each of its
    bytes beta, and a message within a host nothing, the time is 2 ceil(log2 h) alpha + 2n(h-1)/h beta.
    """
    place = Place(rank, layout)
    parts, hosts, host = place.parts, place.hosts, place.host
    b = Builder("allreduce", "hierarchical_circulant", rank, size, grid=(parts * hosts, parts * hosts))
    if size == 1:
        b.copy(b.out(0, parts), b.inp(0, parts))
    for peer in place.beside:
        for part in place.parts_of(peer):
            b.send(peer, b.inp(part * hosts, hosts))
    for part in place.parts_of(rank):

        def given(first: int, count: int, part: int = part) -> Chunk:
            return b.inp(part * hosts + first, count)

        def total(first: int, count: int, part: int = part) -> Chunk:
            return b.out(part * hosts + first, count)

        operands = place.local(given(0, hosts))
        if len(operands) > 1:
            b.reduce(total(0, hosts), *operands, final=hosts == 1)
        if hosts > 1:
            team = [place.owner(h, part, parts) for h in range(hosts)]
            circulant.within(b, team, host, total if len(operands) > 1 else given, total)
        _send_beside(b, place, total(0, hosts))
    for peer in reversed(place.beside):
        for part in place.parts_of(peer):
            b.recv(peer, b.out(part * hosts, hosts))
    return b.build()


@algorithm("reduce_scatter", name="hierarchical_ring", hosts=True)
def hierarchical_ring_reduce_scatter(rank: int, size: int, layout: Layout) -> Schedule:
    """Reduce-scatter: the partial result of a rank's block passes from host to host, and reaches the rank's host last.

    On each host, all ranks send their data of the block to the rank of their host that handles this block. For h hosts
    of any size, the largest with l ranks, and n bytes of data: h rounds; a host sends n(h-1)/h bytes, of which a rank
    sends n(h-1)/(hl) bytes. If a message to another host costs alpha, each of its bytes beta, and a message within a
    host nothing, the time is (h-1) alpha + n(h-1)/h beta.

    Partial results alternate between two sets of temporary buffers, so that a rank writes one set while it sends the
    other.
    """
    place = Place(rank, layout)
    hosts, host = place.hosts, place.host
    b = Builder("reduce_scatter", "hierarchical_ring", rank, size, grid=(size, 1))
    if size == 1:
        b.copy(b.out(), b.inp())
    for t in range(hosts):
        for peer in place.beside:
            for served in place.ranks_served(host - 1 - t, peer):
                b.send(peer, b.inp(served))
    slots: dict[tuple[int, int], Chunk] = {}
    for t in range(hosts):
        last = t == hosts - 1
        for number, served in enumerate(place.ranks_served(host - 1 - t, rank)):
            partial = b.inp(served)
            operands = place.local(partial)
            if t:
                operands.insert(0, place.block_owner(host - 1, served))
            if len(operands) > 1:
                slot = (t % 2, number)
                if not last and slot not in slots:
                    slots[slot] = b.like(b.out())
                partial = b.out() if last else slots[slot]
                b.reduce(partial, *operands, final=last)
            if not last:
                b.send(place.block_owner(host + 1, served), partial)
    return b.build()


@algorithm("allgather", name="hierarchical_ring", hosts=True, uneven=True)
def hierarchical_ring_allgather(rank: int, size: int, layout: Layout) -> Schedule:
    """Allgather: each rank's block passes from host to host; the rank that receives the block sends it to its host.

    For h hosts of any size, the largest with l ranks, and n bytes gathered in all: h rounds; a host sends n(h-1)/h
    bytes, of which a rank sends n(h-1)/(hl) bytes. If a message to another host costs alpha, each of its bytes beta,
    and a message within a host nothing, the time is (h-1) alpha + n(h-1)/h beta.
    """
    place = Place(rank, layout)
    hosts, host = place.hosts, place.host
    b = Builder("allgather", "hierarchical_ring", rank, size, grid=(1, size))
    for t in range(hosts):
        for served in place.ranks_served(host - t, rank):
            block = b.out(served) if t else b.inp()
            if t:
                b.recv(place.block_owner(host - 1, served), block)
            if t < hosts - 1:
                b.send(place.block_owner(host + 1, served), block)
            _send_beside(b, place, block)
    b.copy(b.out(rank), b.inp())
    for t in range(hosts):
        for peer in reversed(place.beside):
            for served in place.ranks_served(host - t, peer):
                b.recv(peer, b.out(served))
    return b.build()


# --- only the leader of each host sends to other hosts


@algorithm("allreduce", hosts=True, in_place=True, uneven=True)
def hierarchical_doubling(rank: int, size: int, layout: Layout) -> Schedule:
    """Allreduce: one rank of each host, the leader, reduces its host's data; leaders then use recursive doubling.

    For h hosts of any size, n bytes of data, and H the largest power of two up to h: log2 H + 2 rounds; a host sends n
    log2 H bytes; a rank sends n bytes to its leader. If a message to another host costs alpha, each of its bytes beta,
    and a message within a host nothing, the time is ceil(log2 h) (alpha + n beta). If H < h, some hosts also work for a
    neighbour host: there are 2 more rounds, such a host sends n more bytes, and the time is alpha + n beta more.
    """
    b = Builder("allreduce", "hierarchical_doubling", rank, size, grid=(1, 1))
    place = Place(rank, layout)
    leader = layout.members[place.host][0]
    if rank != leader:
        b.send(leader, b.inp())
        b.recv(leader, b.out())
        return b.build()
    mine = b.inp()
    if size == 1:
        b.copy(b.out(), mine)
    if place.beside:
        mine = b.like(b.inp()) if place.hosts > 1 else b.out()
        b.reduce(mine, *place.local(b.inp()), final=place.hosts == 1)
    if place.hosts > 1:
        recursive_doubling.within(b, place.leaders, place.host, mine)
    _send_beside(b, place, b.out())
    return b.build()


@algorithm("reduce", name="hierarchical_binomial", hosts=True, in_place=True, uneven=True)
def hierarchical_binomial_reduce(rank: int, size: int, root: int, layout: Layout) -> Schedule:
    """Reduce: one rank of each host, the leader, reduces its host's data and passes it up a binomial tree of leaders.

    The root is the leader of its host.

    For h hosts of any size and n bytes of data: ceil(log2 h) + 1 rounds; a host sends n bytes to another host, a rank
    sends n bytes. If a message to another host costs alpha, each of its bytes beta, and a message within a host
    nothing, the time is ceil(log2 h) (alpha + n beta).
    """
    b = Builder("reduce", "hierarchical_binomial", rank, size, grid=(1, 1), root=root)
    place = Place(rank, layout)
    leaders = _leaders(place, root)
    leader = leaders[place.host]
    if rank != leader:
        b.send(leader, b.inp())
        return b.build()
    within = node(place.host, place.hosts, layout.hosts[root])
    mine = b.inp()
    if size == 1:
        b.copy(b.out(), mine)
    operands = place.local(mine) + [leaders[child.rank] for child in within.children]
    if len(operands) > 1:
        mine = b.out() if rank == root else b.like(b.inp())
        b.reduce(mine, *operands, final=rank == root)
    if within.parent is not None:
        b.send(leaders[within.parent], mine)
    return b.build()


@algorithm("broadcast", hosts=True, uneven=True)
def hierarchical_binomial(rank: int, size: int, root: int, layout: Layout) -> Schedule:
    """Broadcast: data goes down a binomial tree of leaders, one rank of each host; a leader sends it to its host.

    The root is the leader of its host.

    For h hosts of any size and n bytes of data: ceil(log2 h) + 1 rounds; the root sends n ceil(log2 h) bytes. If a
    message to another host costs alpha, each of its bytes beta, and a message within a host nothing, the time is
    ceil(log2 h) (alpha + n beta).
    """
    b = Builder("broadcast", "hierarchical_binomial", rank, size, grid=(0, 1), root=root)
    place = Place(rank, layout)
    leaders = _leaders(place, root)
    if rank != leaders[place.host]:
        b.recv(leaders[place.host], b.out())
        return b.build()
    within = node(place.host, place.hosts, layout.hosts[root])
    if within.parent is not None:
        b.recv(leaders[within.parent], b.out())
    for child in reversed(within.children):
        b.send(leaders[child.rank], b.out())
    _send_beside(b, place, b.out())
    return b.build()


@algorithm("broadcast", hosts=True, uneven=True)
def hierarchical_chain(rank: int, size: int, root: int, layout: Layout) -> Schedule:
    """Broadcast: data passes from leader to leader in slices; each leader also sends it to the other ranks of its host.

    Each host has one leader; the root is the leader of its host.

    For h hosts of any size and n bytes of data: h rounds; a host sends n bytes, the root sends n bytes. If a message to
    another host costs alpha, each of its bytes beta, and a message within a host nothing, the time is (h-1) alpha + n
    beta if slices are small.
    """
    b = Builder("broadcast", "hierarchical_chain", rank, size, grid=(0, 1), root=root)
    place = Place(rank, layout)
    leaders = _leaders(place, root)
    host, first = place.host, layout.hosts[root]
    if rank != leaders[host]:
        b.recv(leaders[host], b.out())
        return b.build()
    if host != first:
        b.recv(leaders[host - 1], b.out())
    if (host + 1) % place.hosts != first:
        b.send(leaders[(host + 1) % place.hosts], b.out())
    _send_beside(b, place, b.out())
    return b.build()


@algorithm("allgather", name="hierarchical_circulant", hosts=True, uneven=True)
def hierarchical_circulant_allgather(rank: int, size: int, layout: Layout) -> Schedule:
    """Allgather: one leader per host collects its host's blocks; leaders exchange them, and distribute all blocks.

    For h hosts of any size and n bytes gathered in all: ceil(log2 h) + 2 rounds; a host sends n(h-1)/h bytes, a rank
    sends its block to its leader. If a message to another host costs alpha, each of its bytes beta, and a message
    within a host nothing, the time is ceil(log2 h) alpha + n(h-1)/h beta. If the ranks of a host are not consecutive,
    their blocks are sent in several messages.
    """
    b = Builder("allgather", "hierarchical_circulant", rank, size, grid=(1, size))
    place = Place(rank, layout)
    hosts, host, leaders = place.hosts, place.host, place.leaders
    if rank != leaders[host]:
        b.send(leaders[host], b.inp())
        b.recv(leaders[host], b.out(0, size))
        return b.build()
    b.copy(b.out(rank), b.inp())
    for peer in place.beside:
        b.recv(peer, b.out(peer))
    for s, half in reversed(circulant.halvings(hosts)):
        for first, count in _runs(layout, host, s - half):
            b.send(leaders[host - half], b.out(first, count))
        for first, count in _runs(layout, host + half, s - half):
            b.recv(leaders[(host + half) % hosts], b.out(first, count))
    _send_beside(b, place, b.out(0, size))
    return b.build()


def _leaders(place: Place, root: int) -> list[int]:
    """The leaders by host; the root is the leader of its own host."""
    leaders = place.leaders
    leaders[place.layout.hosts[root]] = root
    return leaders


def _runs(layout: Layout, first: int, count: int) -> list[tuple[int, int]]:
    """The ranks of `count` hosts, from host `first` on, as runs of consecutive ranks: (first rank, number of ranks)."""
    hosts = len(layout.members)
    ranks = sorted(rank for h in range(first, first + count) for rank in layout.members[h % hosts])
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])]
    return [(run[0], len(run)) for run in runs]
