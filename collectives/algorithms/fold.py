"""Folding a group of any size to a power of two, for algorithms that need one.

Invariant: with P the largest power of two up to p, the first 2(p - P) ranks form neighbouring pairs. The odd one
of a pair gives its data to the even one before the algorithm proper and gets the result after it. Those that are
left number themselves 0 to P - 1 in the order of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from collectives.schedule.form import Chunk


@dataclass(frozen=True, slots=True)
class Fold:
    """One rank's place: `into` is set where it takes no part itself, `guest` is the rank that gives it its data."""

    rank: int
    paired: int  # so many ranks form pairs
    rounds: int  # log2 of those that take part
    into: int | None
    guest: int | None

    def peer(self, distance: int) -> int:
        """The rank whose number differs in that bit."""
        number = self._number ^ distance
        return 2 * number if 2 * number < self.paired else number + self.paired // 2

    def upper(self, distance: int) -> bool:
        """Whether the own number has that bit."""
        return bool(self._number & distance)

    def ordered(self, peer: int, mine: Chunk, theirs: int | Chunk) -> tuple[int | Chunk, int | Chunk]:
        """Both in the order of ranks, so that both sides compute the same."""
        return (mine, theirs) if self.rank < peer else (theirs, mine)

    @property
    def _number(self) -> int:
        return self.rank // 2 if self.rank < self.paired else self.rank - self.paired // 2


def fold(rank: int, size: int) -> Fold:
    rounds = size.bit_length() - 1
    paired = 2 * (size - (1 << rounds))
    odd = rank % 2 == 1
    return Fold(
        rank,
        paired,
        rounds,
        into=rank - 1 if rank < paired and odd else None,
        guest=rank + 1 if rank < paired and not odd else None,
    )
