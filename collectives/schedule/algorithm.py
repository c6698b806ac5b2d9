"""The class Algorithm: a pure function that returns a rank's schedule (its steps), with declared properties.

Invariant: an algorithm returns equal schedules whenever it is called with the same arguments. `verify` proves the
declared properties: group sizes, input and output in the same memory, and blocks of different sizes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from collectives.schedule.conditions import COLLECTIVES, Collective, collective
from collectives.schedule.form import Schedule
from collectives.schedule.layout import Layout, apart

# Its arguments: (rank, size), then root if the collective has one, then layout if the algorithm uses hosts.
Function: TypeAlias = "Callable[..., Schedule]"

_NAME = re.compile(r"[a-z][a-z0-9_]*")


def any_size(size: int) -> bool:
    return size >= 1


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm for one collective. `algorithm(rank, size, ...)` returns the steps of one rank, a `Schedule`.

    `sizes(size)`: whether the algorithm works for groups of that size. `in_place`: it also works if IN and OUT, the
    input and output buffers, are the same memory. `uneven`: it also works if blocks differ in size (the v-variants).
    `hosts`: its schedules depend on which ranks share a host. `in_order`: it combines operands in the order of ranks,
    so it also works for reductions that are not commutative.
    """

    collective: str
    name: str
    function: Function
    sizes: Callable[[int], bool] = any_size
    in_place: bool = False
    uneven: bool = False
    hosts: bool = False
    in_order: bool = False

    def __post_init__(self) -> None:
        contract = collective(self.collective)
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"algorithm name {self.name!r} is not lower case letters, digits and '_'")
        if self.in_place and not contract.may_alias:
            can = ", ".join(c.name for c in COLLECTIVES.values() if c.may_alias)
            raise ValueError(f"{self.collective} never works in place; {can} do")
        if self.in_order and not contract.reduces:
            raise ValueError(f"{self.collective} reduces nothing, in any order")

    def __str__(self) -> str:
        return f"{self.collective} {self.name}"

    @property
    def contract(self) -> Collective:
        return collective(self.collective)

    def __call__(self, rank: int, size: int, root: int = 0, layout: Layout | None = None) -> Schedule:
        """The schedule of one rank. ValueError for an invalid rank, size, root or layout.

        `layout` tells which ranks share a host. Any algorithm accepts it; without it, every rank counts as alone on
        its host.
        """
        if size < 1 or not self.sizes(size):
            raise ValueError(f"{self} does not work for {size} ranks")
        if not 0 <= rank < size:
            raise ValueError(f"rank {rank} is not within 0 to {size - 1}")
        if not self.contract.rooted and root != 0:
            raise ValueError(f"{self.collective} has no root, yet root {root} was given")
        if not 0 <= root < size:
            raise ValueError(f"root {root} is not within 0 to {size - 1}")
        if layout is not None and layout.size != size:
            raise ValueError(f"a layout of {layout.size} ranks was given for {size} ranks")
        arguments: list[int | Layout] = [rank, size]
        if self.contract.rooted:
            arguments.append(root)
        if self.hosts:
            arguments.append(layout or apart(size))
        return self.function(*arguments)


@lru_cache(maxsize=1024)
def schedule_of(algorithm: Algorithm, rank: int, size: int, root: int = 0, layout: Layout | None = None) -> Schedule:
    """The schedule that calling the algorithm returns, cached."""
    return algorithm(rank, size, root, layout)
