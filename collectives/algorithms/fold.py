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
    """How a rank takes part in an algorithm that needs a power of two of ranks, when the group has another size.

    Some ranks do not run the algorithm. Such a rank first sends its data to a neighbour, which runs the algorithm for
    both. `into` is this rank's neighbour, or None if this rank runs the algorithm itself. `partner` is the rank for
    which this rank also runs the algorithm, or None if there is no such rank. The ranks that run the algorithm have
    consecutive numbers, from 0, in the order of ranks.
    """

    rank: int
    paired: int  # number of ranks that form pairs
    rounds: int  # log2 of the number of ranks that take part
    into: int | None
    partner: int | None

    def peer(self, distance: int) -> int:
        """Returns the rank with which this rank exchanges data in one round of the algorithm.

        Ranks that run the algorithm have consecutive numbers from 0. The peer's number differs from this rank's only in
        the bit `distance`, a power of two.
        """
        number = self._number ^ distance
        return 2 * number if 2 * number < self.paired else number + self.paired // 2

    def upper(self, distance: int) -> bool:
        """Whether the bit `distance` is set in this rank's number among the ranks that run the algorithm."""
        return bool(self._number & distance)

    def ordered(self, peer: int, mine: Chunk, theirs: int | Chunk) -> tuple[int | Chunk, int | Chunk]:
        """The operands `mine` and `theirs`, with the operand of the lower rank first.

        So both ranks combine them in the same order and compute the same bits. `peer`: the rank that sent `theirs`.
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
