"""Folding: some ranks take part for a neighbour too, so that an algorithm has a power of two of ranks.

Invariant: P is the largest power of two up to the number of ranks p. The first 2(p - P) ranks form pairs of neighbours.
The odd rank of a pair sends its data to the even rank before the algorithm, and receives the result from the even rank
afterwards. All ranks but the odd ranks of pairs take part in the algorithm, numbered 0 to P - 1 in the order of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from collectives.schedule.form import Chunk


@dataclass(frozen=True, slots=True)
class Fold:
    """How a rank takes part in an algorithm for 2^k ranks: for itself, for a neighbour too, or not at all.

    `into` is the rank that takes part for this rank, or None if this rank takes part itself. `partner` is the neighbour
    for which this rank takes part too, or None.
    """

    rank: int
    paired: int  # number of ranks that form pairs
    rounds: int  # log2 of the number of ranks that take part
    into: int | None
    partner: int | None

    def peer(self, distance: int) -> int:
        """The rank whose number, among those that take part, differs from this rank's only in the bit `distance`."""
        number = self._number ^ distance
        return 2 * number if 2 * number < self.paired else number + self.paired // 2

    def upper(self, distance: int) -> bool:
        """Whether the number of this rank, among those that take part, has the bit `distance`."""
        return bool(self._number & distance)

    def ordered(self, peer: int, mine: Chunk, theirs: int | Chunk) -> tuple[int | Chunk, int | Chunk]:
        """The operands `mine` and `theirs`, the lower rank's first, so that both ranks compute the same result.

        `peer`: the rank from which `theirs` comes.
        """
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
        partner=rank + 1 if rank < paired and not odd else None,
    )
