"""What each collective requires and promises: its buffers, their contents before, and their contents after.

Invariant: nothing here depends on an algorithm. A schedule is right if and only if it turns the data that `initial`
names into the data that `expected` names, for all block sizes that `extent` allows.

The columns IN and OUT are the numbers of blocks of the input and output buffers. p is the number of ranks; C and k are
any numbers from 1 up.

    collective      IN       OUT      block b of OUT on rank r in the end
    allreduce       C        C        the reduction of every rank's IN block b
    reduce          C        C        on the root: the reduction of every rank's IN block b
    reduce_scatter  p*k      k        the reduction of every rank's IN block r*k + b
    allgather       k        p*k      IN block b % k of rank b // k
    broadcast       0        C        OUT block b of the root, which has it from the beginning
    gather          1        p        on the root: IN block 0 of rank b
    scatter         p        1        IN block r of the root
    alltoall        p        p        IN block r of rank b
    scan            C        C        the reduction of IN block b of ranks 0 to r
    exscan          C        C        the reduction of IN block b of ranks 0 to r - 1; rank 0 has no OUT
    barrier         1        1        the reduction of every rank's IN, which is one element

A barrier reduces one element because only data makes messages wait: a rank may send a message before it has received
another, unless the sent data depends on the received data. Messages without data would not wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from collectives.native.spelling import hint
from collectives.schedule.form import IN, OUT


class Leaf(NamedTuple):
    """Describes an output block that is a copy of block `block` of the input of rank `rank`."""

    rank: int
    block: int


class Total(NamedTuple):
    """Describes an output block that is the reduction of block `block` of all ranks' inputs."""

    block: int


class Prefix(NamedTuple):
    """Describes an output block of a scan that is the reduction of input block `block` of ranks 0 to `ranks` - 1."""

    block: int
    ranks: int


Grid: TypeAlias = "tuple[int, int]"


@dataclass(frozen=True, slots=True)
class Collective:
    """The definition of one collective: which buffers each rank has, and their contents before and after.

    Input and output buffers are divided into blocks; `grid` is the pair of their numbers of blocks.

    - `fits(grid, size)`: whether the collective allows this grid in a group of `size` ranks
    - `expected(rank, root, block, grid)`: the contents of output block `block` of `rank` at the end
    - `numbered(buffer, rank, block, grid)`: the index of the block's size in the list of block sizes. For v-variants,
      this is the list that callers pass, the same on all ranks.
    """

    name: str
    rooted: bool
    reduces: bool
    may_alias: bool  # IN and OUT may be the same memory
    fits: Callable[[Grid, int], bool]
    expected: Callable[[int, int, int, Grid], Leaf | Total | Prefix]
    numbered: Callable[[int, int, int, Grid], int]

    def has(self, buffer: int, rank: int, root: int) -> bool:
        """Whether rank `rank` has the buffer `buffer` (IN, the input, or OUT, the output) in this collective."""
        if buffer == IN:
            return self.name != "broadcast" and (self.name != "scatter" or rank == root)
        if self.name == "exscan":
            return rank > 0
        return rank == root or self.name not in ("reduce", "gather")

    @property
    def prefixes(self) -> bool:
        """Whether the collective is a scan or exscan: a rank's result covers only ranks up to, or before, this rank."""
        return self.name in ("scan", "exscan")

    def initial(self, buffer: int, rank: int, root: int) -> bool:
        """Whether `buffer` (IN, the input, or OUT, the output) of `rank` contains data when the collective starts."""
        if self.name == "broadcast":
            return buffer == OUT and rank == root
        return buffer == IN and self.has(IN, rank, root)

    def uses_input_of(self, rank: int, size: int) -> bool:
        """Whether any rank's result depends on the input of `rank`.

        In an exscan, no result depends on the input of the last rank.
        """
        return self.name != "exscan" or rank + 1 < size

    def extent(self, buffer: int, rank: int, block: int, grid: Grid, uneven: bool) -> int:
        """Returns an integer that stands for the size of a block: blocks with the same integer have the same size.

        `buffer`: IN (input) or OUT (output) of `rank`. `grid`: the numbers of blocks of these two buffers. Without
        `uneven`, every rank's part of the data has the same size. The blocks of a part then differ in size by at most
        one element. With `uneven`, every block may have a different size.
        """
        number = self.numbered(buffer, rank, block, grid)
        if uneven or self.name in ("allreduce", "reduce", "broadcast", "barrier", "scan", "exscan"):
            return number
        return number % min(grid) if self.name in ("reduce_scatter", "allgather") else 0


def _same(_buffer: int, _rank: int, block: int, _grid: Grid) -> int:
    return block


def _parts_of(whole: int) -> Callable[[int, int, int, Grid], int]:
    """A function for `numbered`: gives a block its number in `whole`, the buffer (IN or OUT) with every rank's part."""

    def number(buffer: int, rank: int, block: int, grid: Grid) -> int:
        return block if buffer == whole else rank * grid[1 - whole] + block

    return number


def _transposed(buffer: int, rank: int, block: int, grid: Grid) -> int:
    return rank * grid[0] + block if buffer == IN else block * grid[0] + rank


def _total_of_same(_rank: int, _root: int, block: int, _grid: Grid) -> Total:
    return Total(block)


def _prefix(more: int) -> Callable[[int, int, int, Grid], Prefix]:
    return lambda rank, _root, block, _grid: Prefix(block, rank + more)


def _equal(grid: Grid, _p: int) -> bool:
    return grid[0] == grid[1] >= 1


_CONTRACTS = (
    Collective(
        "allreduce", rooted=False, reduces=True, may_alias=True, fits=_equal, expected=_total_of_same, numbered=_same
    ),
    Collective(
        "reduce", rooted=True, reduces=True, may_alias=True, fits=_equal, expected=_total_of_same, numbered=_same
    ),
    Collective(
        "reduce_scatter",
        rooted=False,
        reduces=True,
        may_alias=False,
        fits=lambda grid, p: grid[1] >= 1 and grid[0] == p * grid[1],
        expected=lambda rank, _root, block, grid: Total(rank * grid[1] + block),
        numbered=_parts_of(IN),
    ),
    Collective(
        "allgather",
        rooted=False,
        reduces=False,
        may_alias=False,
        fits=lambda grid, p: grid[0] >= 1 and grid[1] == p * grid[0],
        expected=lambda _rank, _root, block, grid: Leaf(block // grid[0], block % grid[0]),
        numbered=_parts_of(OUT),
    ),
    Collective(
        "broadcast",
        rooted=True,
        reduces=False,
        may_alias=False,
        fits=lambda grid, _p: grid[0] == 0 and grid[1] >= 1,
        expected=lambda _rank, root, block, _grid: Leaf(root, block),
        numbered=_same,
    ),
    Collective(
        "gather",
        rooted=True,
        reduces=False,
        may_alias=False,
        fits=lambda grid, p: grid == (1, p),
        expected=lambda _rank, _root, block, _grid: Leaf(block, 0),
        numbered=_parts_of(OUT),
    ),
    Collective(
        "scatter",
        rooted=True,
        reduces=False,
        may_alias=False,
        fits=lambda grid, p: grid == (p, 1),
        expected=lambda rank, root, _block, _grid: Leaf(root, rank),
        numbered=_parts_of(IN),
    ),
    Collective(
        "alltoall",
        rooted=False,
        reduces=False,
        may_alias=False,
        fits=lambda grid, p: grid == (p, p),
        expected=lambda rank, _root, block, _grid: Leaf(block, rank),
        numbered=_transposed,
    ),
    Collective("scan", rooted=False, reduces=True, may_alias=True, fits=_equal, expected=_prefix(1), numbered=_same),
    Collective("exscan", rooted=False, reduces=True, may_alias=True, fits=_equal, expected=_prefix(0), numbered=_same),
    Collective(
        "barrier",
        rooted=False,
        reduces=True,
        may_alias=False,
        fits=lambda grid, _p: grid == (1, 1),
        expected=lambda _rank, _root, _block, _grid: Total(0),
        numbered=_same,
    ),
)

COLLECTIVES: Final = {contract.name: contract for contract in _CONTRACTS}


def collective(name: str) -> Collective:
    """Returns the definition of the collective `name`: its buffers, and their contents before and after.

    Raises ValueError, which lists the known names, for any other name.
    """
    try:
        return COLLECTIVES[name]
    except KeyError:
        raise ValueError(
            f"there is no collective {name!r}{hint(name, COLLECTIVES)}; there are {', '.join(sorted(COLLECTIVES))}"
        ) from None
