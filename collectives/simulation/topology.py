"""The hosts on which a group's ranks run, and the switches that connect these hosts.

Invariant: ranks are numbered host by host and hosts switch by switch, so a rank's number determines its host and
its switches.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from operator import mul


@dataclass(frozen=True, slots=True)
class Switches:
    """One level of a network's switches; each switch connects `radix` hosts, or `radix` switches of the level below.

    `oversubscription`: a switch's total bandwidth to the level below, divided by its bandwidth to the level above.
    """

    radix: int
    oversubscription: float = 1.0

    def __post_init__(self) -> None:
        if self.radix < 2:
            raise ValueError(f"a switch joins at least 2, not {self.radix}")
        if not 0 < self.oversubscription < float("inf"):
            raise ValueError(f"links cannot be oversubscribed {self.oversubscription}:1")


@dataclass(frozen=True, slots=True)
class Topology:
    """The hosts on which ranks run, with their network cards, and the levels of switches that connect the hosts.

    `cores`: the number of cores of a host; 0 means one core for each rank. `cards`: the number of network cards of a
    host, which its ranks share. One more switch, with unlimited bandwidth, connects the switches of the highest level.
    """

    ranks_per_host: int = 1
    cores: int = 0
    cards: int = 1  # network cards of a host
    levels: tuple[Switches, ...] = ()

    def __post_init__(self) -> None:
        if self.ranks_per_host < 1 or self.cards < 1 or self.cores < 0:
            raise ValueError("a host has at least one rank and one network card")

    @property
    def spans(self) -> tuple[int, ...]:
        """For each level of switches, from the lowest to the highest, how many hosts are below one of its switches."""
        return tuple(accumulate((level.radix for level in self.levels), mul))

    @property
    def shares(self) -> tuple[float, ...]:
        """For each level of switches, one switch's bandwidth to the level above, divided by a network card's."""
        narrowing = accumulate((level.oversubscription for level in self.levels), mul)
        return tuple(self.cards * span / narrow for span, narrow in zip(self.spans, narrowing, strict=True))

    @property
    def period(self) -> int:
        """The number of ranks after which the topology repeats itself."""
        return self.ranks_per_host * (self.spans[-1] if self.levels else 1)

    def cores_of(self, ranks: int) -> int:
        """The number of cores that the ranks of one host use, in a group of `ranks` ranks."""
        here = min(self.ranks_per_host, ranks)
        return min(self.cores or here, here)

    def per_core(self, ranks: int) -> int:
        """The largest number of ranks that run on one core, in a group of `ranks` ranks."""
        return -(-min(self.ranks_per_host, ranks) // self.cores_of(ranks))
