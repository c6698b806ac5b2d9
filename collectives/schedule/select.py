"""Which algorithm runs when the caller leaves the choice to us, and why.

Invariant: the choice depends only on what is the same on every rank (collective, group, bytes, environment of
the whole group), never on one rank's buffers: ranks that choose differently cannot talk to each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

KIB: Final = 1024
ANY_SIZE: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Situation:
    """What a group is like: `kind` is the slowest transport between any two of its ranks ("self" alone)."""

    size: int
    kind: str
    crowded: bool = False  # on some machine ranks outnumber cores


@dataclass(frozen=True, slots=True)
class Row:
    """Use `algorithm` for groups of `ranks` (first to last) over one of `kinds`, up to `bytes`."""

    collective: str
    kinds: tuple[str, ...]
    ranks: tuple[int, int]
    bytes: int
    algorithm: str
    reason: str

    def fits(self, situation: Situation) -> bool:
        """Whether it is meant for such a group; the bytes aside."""
        kinds = not self.kinds or situation.kind in self.kinds
        return kinds and self.ranks[0] <= situation.size <= self.ranks[1]


@dataclass(frozen=True, slots=True)
class Choice:
    algorithm: str
    reason: str


_MEMORY = ("self", "inproc", "shm")
_NETWORK = ("tcp",)
_EVERYWHERE = ()  # of any kind, also those of other packages
_ALL = (1, ANY_SIZE)

# The first row that fits decides. Bytes are those of the larger of a rank's two buffers.
TABLE: Final = (
    Row("allreduce", _MEMORY, (1, 2), 64 * KIB, "one_shot", "one synchronisation; both read all of a small array"),
    Row("allreduce", _MEMORY, (3, 4), 32 * KIB, "one_shot", "one synchronisation; reading all copies is cheap"),
    Row("allreduce", _MEMORY, (5, 16), 8 * KIB, "one_shot", "one synchronisation; reading all copies is cheap"),
    Row("allreduce", _MEMORY, (17, ANY_SIZE), 2 * KIB, "recursive_doubling", "log2(ranks) rounds of a small array"),
    Row("allreduce", _MEMORY, (1, 64), ANY_SIZE, "two_shot", "every rank reduces its own part once"),
    Row("allreduce", _MEMORY, (65, ANY_SIZE), ANY_SIZE, "ring", "few links a rank where ranks are many"),
    Row("allreduce", _EVERYWHERE, (1, 2), 64 * KIB, "one_shot", "one exchange"),
    Row("allreduce", _EVERYWHERE, (1, 2), ANY_SIZE, "two_shot", "each reduces a half: half the bytes"),
    Row("allreduce", _EVERYWHERE, (3, ANY_SIZE), 16 * KIB, "recursive_doubling", "log2(ranks) rounds: least latency"),
    Row("allreduce", _EVERYWHERE, (3, ANY_SIZE), 256 * KIB, "halving_doubling", "few rounds and few bytes"),
    Row("allreduce", _EVERYWHERE, (3, ANY_SIZE), ANY_SIZE, "ring", "fewest bytes, between neighbours only"),
    Row("reduce_scatter", _MEMORY, (1, 64), ANY_SIZE, "direct", "one round: every rank reads its own part of all"),
    Row("reduce_scatter", _EVERYWHERE, _ALL, 256 * KIB, "circulant", "log2(ranks) rounds and fewest bytes"),
    Row("reduce_scatter", _EVERYWHERE, _ALL, ANY_SIZE, "ring", "fewest bytes, between neighbours only"),
    Row("allgather", _MEMORY, (1, 64), ANY_SIZE, "direct", "one round: published once, read by all"),
    Row("allgather", _EVERYWHERE, _ALL, 256 * KIB, "circulant", "log2(ranks) rounds and fewest bytes"),
    Row("allgather", _EVERYWHERE, _ALL, ANY_SIZE, "ring", "fewest bytes, between neighbours only"),
    Row("broadcast", _MEMORY, (1, 64), ANY_SIZE, "direct", "one round: published once, read by all"),
    Row("broadcast", _EVERYWHERE, _ALL, 64 * KIB, "binomial", "log2(ranks) rounds"),
    Row("broadcast", _EVERYWHERE, _ALL, ANY_SIZE, "scatter_allgather", "the root sends the array about once"),
    Row("reduce", _MEMORY, (1, 64), 64 * KIB, "direct", "one round: the root reads all"),
    Row("reduce", _EVERYWHERE, _ALL, ANY_SIZE, "binomial", "log2(ranks) rounds"),
    Row("gather", _EVERYWHERE, (9, ANY_SIZE), 16 * KIB, "binomial", "log2(ranks) messages at the root"),
    Row("gather", _EVERYWHERE, _ALL, ANY_SIZE, "linear", "every byte crosses one link only"),
    Row("scatter", _EVERYWHERE, (9, ANY_SIZE), 16 * KIB, "binomial", "log2(ranks) messages at the root"),
    Row("scatter", _EVERYWHERE, _ALL, ANY_SIZE, "linear", "every byte crosses one link only"),
    Row("alltoall", _MEMORY, (1, 64), ANY_SIZE, "direct", "one round"),
    Row("alltoall", _EVERYWHERE, (5, ANY_SIZE), 4 * KIB, "bruck", "log2(ranks) messages instead of one a peer"),
    Row("alltoall", _EVERYWHERE, _ALL, ANY_SIZE, "pairwise", "every byte crosses one link only"),
    Row("barrier", _EVERYWHERE, _ALL, ANY_SIZE, "dissemination", "log2(ranks) rounds"),
)


def select(collective: str, nbytes: int, situation: Situation, usable: Callable[[str], bool]) -> Choice:
    """The first row that fits and whose algorithm is `usable` here. LookupError where there is none."""
    for row in TABLE:
        if row.collective == collective and nbytes <= row.bytes and row.fits(situation) and usable(row.algorithm):
            return Choice(row.algorithm, row.reason)
    raise LookupError(f"no algorithm for {collective} of {nbytes} bytes among {situation.size} ranks")
