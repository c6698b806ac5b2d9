"""The sets of ranks whose schedules are the same.

Invariant: each rank is in one family, and `families` computes the schedules of only some ranks of a family. If another
rank of the family had other steps, the caller would detect this when it matches the sends and receives of all messages.

Even a group of a million ranks has few families. A family is a set of ranks with the same steps; one formula, such as
rank + 1, gives the peer of each rank. In many algorithms for several hosts all ranks are one family: a peer is so many
hosts further on, and so many ranks further on within its host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from collectives.simulation.outline import Outline
from collectives.simulation.relations import FIXED, HOSTS, MIRROR, SHIFT, XOR, Array, Ranks

_EXAMINED: Final = 64  # members; all members of a smaller family are examined
_LONG: Final = 8192  # steps; of a family with longer schedules, only two members are examined
_MANY: Final = 8192  # peers; of a family whose first member has more, only six members are examined
_WIDE: Final = 100_000  # blocks; the same for schedules with more blocks


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """A set of ranks that have the same steps in a collective, except for the peers of messages.

    `members`: the ranks. `outline`: the steps. `relations` and `constants` have an item for each peer of each step, in
    order. The two items say how to compute the peer from the rank, such as (rank + constant) mod size.
    """

    members: range
    outline: Outline
    relations: Array
    constants: Array

    @property
    def whole(self) -> int | None:
        """The one formula by which all peers of all members are computed; None if `relations` has several formulas."""
        found = set(self.relations.tolist())
        return found.pop() if len(found) == 1 else None


def singles(outlines: Sequence[Outline]) -> list[Family]:
    """Returns a set for each rank, which contains only this rank: treats all ranks as if they had different steps."""
    return [
        Family(range(i, i + 1), o, np.full(o.flat_peers.size, FIXED, np.int64), o.flat_peers)
        for i, o in enumerate(outlines)
    ]


def families(outline: Callable[[int], Outline], ranks: Ranks) -> list[Family]:
    """Divides the ranks of a group into sets of ranks that have the same steps, except for the peers of messages.

    `outline(rank)` returns the steps of a rank, as numbers. A set has all ranks of the group, or ranks that differ by
    multiples of the number of ranks on each host.
    """
    size, stride = ranks.size, min(ranks.per_host, ranks.size)
    if ranks.even:
        everyone = range(size)
        if (family := _family(everyone, _sample(everyone, outline), ranks, (HOSTS,))) is not None:
            return [family]
    found: list[Family] = []
    pending = [range(first, size, stride) for first in range(stride)]
    while pending:
        members = pending.pop()
        chosen = _sample(members, outline)
        if (family := _family(members, chosen, ranks)) is not None:
            found.append(family)
        elif len(members) > 2 and _family(members[:-1], chosen[:-1], ranks) is not None:
            pending += [members[:-1], members[-1:]]
        elif len(members) > 2 and _family(members[1:], chosen[1:], ranks) is not None:
            pending += [members[1:], members[:1]]
        else:
            pending += [members[::2], members[1::2]]
    return found


def _sample(members: range, outline: Callable[[int], Outline]) -> list[Outline]:
    n = len(members)
    first = outline(members[0])
    if n <= _EXAMINED and n * len(first.forms) < _EXAMINED * _LONG:
        places = list(range(n))
    elif len(first.forms) > _LONG or int(first.forms[:, 2].sum()) > _WIDE:
        places = [0, n // 2 + 1]
    elif first.flat_peers.size > _MANY:
        places = [0, 1, 2, n // 2, n - 2, n - 1]
    else:
        places = [0, 1, 2, 3, n // 7, n // 3 + 1, n // 2, n * 5 // 7, n - 4, n - 3, n - 2, n - 1]
    return [first if i == 0 else outline(members[i]) for i in sorted(set(places)) if 0 <= i < n]


def _family(
    members: range, outlines: Sequence[Outline], ranks: Ranks, among: tuple[int, ...] = (SHIFT, XOR, FIXED, MIRROR)
) -> Family | None:
    first = outlines[0]
    if any(not o.like(first) for o in outlines[1:]):
        return None
    relations = np.full(first.flat_peers.size, -1, np.int64)
    constants = np.zeros(first.flat_peers.size, np.int64)
    for relation in (FIXED,) if len(outlines) == 1 else among:
        mine = [ranks.constants(relation, o.rank, o.flat_peers) for o in outlines]
        fits = np.all([other == mine[0] for other in mine], axis=0)
        new = np.full(fits.shape, True) if fits.all() else fits & (relations < 0)  # one that fits all peers wins
        relations[new], constants[new] = relation, mine[0][new]
        if fits.all():
            break
    return None if (relations < 0).any() else Family(members, first, relations, constants)
