"""The class Layout: which ranks share a host.

Invariant: a layout is the same on all ranks of a group. Hosts are numbered from 0 in the order of their first ranks, so
layouts that put the same ranks together are equal, for any names of hosts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Layout:
    """Says which ranks share a host: rank r is on host number `hosts[r]`; `members[h]` lists the ranks of host h.

    `members[h]` is in ascending order. `largest` is the number of ranks on the host that has the most ranks.
    """

    hosts: tuple[int, ...]
    members: tuple[tuple[int, ...], ...] = field(init=False, compare=False, repr=False)
    largest: int = field(init=False, compare=False, repr=False)
    _local: tuple[int, ...] = field(init=False, compare=False, repr=False)
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        members: list[list[int]] = []
        local = []
        for rank, host in enumerate(self.hosts):
            if not 0 <= host <= len(members):
                raise ValueError(f"rank {rank} is on host {host}: hosts are numbered in the order of their first ranks")
            if host == len(members):
                members.append([])
            local.append(len(members[host]))
            members[host].append(rank)
        object.__setattr__(self, "members", tuple(map(tuple, members)))
        object.__setattr__(self, "largest", max(map(len, members), default=0))
        object.__setattr__(self, "_local", tuple(local))
        object.__setattr__(self, "_hash", hash(self.hosts))

    def __hash__(self) -> int:
        """Computed once: caches need it at every call, and a layout may have thousands of ranks."""
        return self._hash

    def __str__(self) -> str:
        return f"{len(self.members)} host{'s' * (len(self.members) != 1)} with ranks " + " | ".join(
            ",".join(map(str, ranks)) for ranks in self.members
        )

    @staticmethod
    def of(hosts: Iterable[Hashable]) -> Layout:
        """Returns the layout in which ranks with equal values in `hosts` share a host.

        `hosts` has one value for each rank, in rank order.
        """
        numbers: dict[Hashable, int] = {}
        return Layout(tuple(numbers.setdefault(host, len(numbers)) for host in hosts))

    @property
    def size(self) -> int:
        return len(self.hosts)

    @property
    def nested(self) -> bool:
        """Whether this layout of ranks has several hosts, and several ranks on one of them."""
        return 1 < len(self.members) < len(self.hosts)

    def local_rank(self, rank: int) -> int:
        """The rank's number among the ranks of its host."""
        return self._local[rank]

    def beside(self, rank: int) -> tuple[int, ...]:
        """The other ranks on the host of `rank`: first those above `rank`, then those below, in ascending order."""
        ranks, at = self.members[self.hosts[rank]], self._local[rank]
        return ranks[at + 1 :] + ranks[:at]


@lru_cache(maxsize=64)
def even(size: int, ranks_per_host: int) -> Layout:
    """A layout (which ranks share a host) with `ranks_per_host` consecutive ranks on each host.

    The last host has the remaining ranks, which may be fewer.
    """
    return Layout(tuple(rank // ranks_per_host for rank in range(size)))


def apart(size: int) -> Layout:
    """Every rank on a host of its own."""
    return even(size, 1)
