"""Writes the rows of the built-in table of algorithms for groups that nobody has measured, by the simulator's times.

    python -m tools.model_defaults            # some minutes; writes collectives/schedule/modelled.py

Invariant: the same algorithms and costs give the same file. In every group and at every size that was simulated for a
row, the row's algorithm takes at most `TOLERANCE` times as long as the fastest; few rows are preferred to many.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from math import inf, log
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from collectives.algorithms import registry
from collectives.calibration.settle import border
from collectives.schedule.conditions import COLLECTIVES
from collectives.schedule.table import ANY_RANKS, ANY_SIZE, Row, Table, bytes_text, text
from collectives.simulation.simulate import simulate
from collectives.simulation.topology import Topology

FILE: Final = Path(__file__).parents[1] / "collectives" / "schedule" / "modelled.py"
TOLERANCE: Final = 1.3
SIZES: Final = tuple(8 << 2 * n for n in range(14))
ROW: Final = 1.0  # penalty of a row, compared with the sum of losses (see `losses`) over all groups and sizes
DOUBT: Final = 0.15  # penalty, for large arrays, of an algorithm that is not `trusted`, as a logarithm
_FAR: Final = 8.0  # an algorithm that takes so many times the fastest time at every size is dropped for larger groups
_FLAT: Final = (*range(2, 18), 21, 24, 31, 32, 33, 48, 63, 64, 65, 128, 256)
_HOSTS: Final = (2, 3, 4, 5, 8, 13, 16, 32)
_PER_HOST: Final = (2, 3, 4, 8, 16)
_SHARING: Final = (17, 20, 24, 32, 33, 48, 64)

Times: TypeAlias = "dict[int, dict[str, float]]"  # by size and algorithm: seconds


class Group(NamedTuple):
    hosts: int
    per_host: int


@dataclass(frozen=True, slots=True)
class Kind:
    """A family of groups of ranks for which rows of the built-in table of algorithms are computed by simulation.

    Two numbers vary in the family, such as the number of hosts and of ranks per host. `outer` and `inner` have the
    values of each that are simulated. `group(outer, inner)` returns the group for two values. `row` restricts a row of
    the table to a range of each number.

    `trusted` are algorithms that are known to be fast for arrays of at least `from_size` bytes, for reasons that the
    simulator does not model (docs/decisions/031-halving-doubling-order.md). `aware` are algorithms that send each byte
    to a host only once. For arrays of at least `from_size` bytes, they are preferred to all others.
    """

    constant: str
    name: str
    outer: tuple[int, ...]
    inner: tuple[int, ...]
    group: Callable[[int, int], Group]
    row: Callable[[Row, tuple[int, int], tuple[int, int]], Row]
    trusted: frozenset[str]
    from_size: int = 256 << 10
    aware: frozenset[tuple[str, str]] = frozenset()


def _hosts_row(row: Row, per_host: tuple[int, int], hosts: tuple[int, int]) -> Row:
    return replace(row, hosts=hosts, per_host=per_host)


def _shared_row(row: Row, _: tuple[int, int], ranks: tuple[int, int]) -> Row:
    return replace(row, ranks=ranks, kinds=("self", "inproc", "shm"), oversubscribed=False)


def _ranks_row(row: Row, _: tuple[int, int], ranks: tuple[int, int]) -> Row:
    return replace(
        row, ranks=ranks if ranks[0] > _FLAT[0] else (1, ranks[1])
    )  # a row for two ranks holds for one rank, too


def _nested_group(per_host: int, hosts: int) -> Group:
    return Group(hosts, per_host)


def _shared_group(_: int, ranks: int) -> Group:
    return Group(1, ranks)


def _flat_group(_: int, ranks: int) -> Group:
    return Group(ranks, 1)


# The trusted algorithms between hosts: only neighbours exchange data, so no receiver has several senders at once.
_RINGS: Final = frozenset(
    {"ring", "hierarchical_ring", "hierarchical_chain", "pairwise", "chain", "scatter_allgather", "linear"}
)
# Algorithms for reductions by a function of the caller; for others, another algorithm is always as fast or faster.
_FOR_FUNCTIONS: Final = {("reduce", "binomial_in_order"), ("reduce_scatter", "pairwise")}
# The trusted algorithms inside a host, where the engine adds in one place.
_SHARED: Final = frozenset({"two_shot", "direct", "linear", "binomial"})

_AWARE: Final = frozenset(
    (name, known.name)
    for name in (
        "allreduce",
        "reduce",
        "reduce_scatter",
        "allgather",
        "broadcast",
    )  # all algorithms for scans send each byte to a host once
    for known in registry.algorithms(name)
    if known.hosts
)

KINDS: Final = (
    Kind(
        "NESTED",
        "Several hosts with several ranks.",
        _PER_HOST,
        _HOSTS,
        _nested_group,
        _hosts_row,
        _RINGS,
        64 << 10,
        _AWARE,
    ),
    Kind(
        "SHARED",
        "More ranks of one host than were measured.",
        (1,),
        _SHARING,
        _shared_group,
        _shared_row,
        _SHARED,
        8192,
    ),
    Kind("FLAT", "One rank a host, or an unknown network.", (1,), _FLAT, _flat_group, _ranks_row, _RINGS),
)


def times(collective: str, group: Group, names: Sequence[str]) -> Times:
    """Simulate the algorithms `names` of `collective` in the group `group`.

    Return the times in seconds, by size in bytes and algorithm.
    """
    ranks = group.hosts * group.per_host
    sizes = (0,) if collective == "barrier" else SIZES
    topology = Topology(group.per_host)
    found: Times = {nbytes: {} for nbytes in sizes}
    for name in names:
        known = registry.get(collective, name)
        for nbytes in sizes:
            found[nbytes][name] = simulate(known, ranks, nbytes, topology).seconds
    return found


def simulated(collective: str, kind: Kind) -> dict[tuple[int, int], Times]:
    """Simulate all algorithms of `collective` in all groups of the family `kind`.

    Return the simulated times for each pair of `kind.outer` and `kind.inner`. An algorithm that is much slower than the
    fastest at all sizes is not simulated for larger groups.
    """
    found: dict[tuple[int, int], Times] = {}
    for outer in kind.outer:
        left = [a.name for a in registry.algorithms(collective) if (collective, a.name) not in _FOR_FUNCTIONS]
        for inner in kind.inner:
            group = kind.group(outer, inner)
            ranks = group.hosts * group.per_host
            usable = {a.name for a in registry.algorithms(collective, ranks) if not a.hosts or kind is KINDS[0]}
            here = times(collective, group, [name for name in left if name in usable])
            near = {n for t in here.values() for n, seconds in t.items() if seconds <= _FAR * min(t.values())}
            left = [name for name in left if name in near or name not in usable]
            found[outer, inner] = here
    return found


Steps: TypeAlias = "list[tuple[int, str]]"  # last size, algorithm


def ladder(cells: Sequence[Mapping[int, Mapping[str, float]]]) -> tuple[float, Steps]:
    """Choose an algorithm for each range of sizes, so that the sum of all losses is smallest.

    `cells` has, for each group, the loss of each algorithm by size. A loss says by how much an algorithm is slower than
    the fastest. Each range also costs `ROW`, so that there are few ranges.

    Return the sum, and a list with the last size of each range and its algorithm. If at some size no algorithm has a
    loss in every group, the sum is infinite and the list is empty.
    """
    best: dict[str, tuple[float, Steps]] = {}
    for nbytes in cells[0]:
        after: dict[str, tuple[float, Steps]] = {}
        cheapest = min(best.values(), key=lambda way: way[0], default=(0.0, []))
        for name in cells[0][nbytes]:
            if any(name not in cell[nbytes] for cell in cells):
                continue
            anew = cheapest[0] + ROW
            total, steps = best.get(name, (inf, []))
            total, steps = (total, steps[:-1]) if total <= anew else (anew, cheapest[1])
            after[name] = total + sum(cell[nbytes][name] for cell in cells), [*steps, (nbytes, name)]
        if not after:
            return inf, []
        best = after
    total, steps = min(best.values(), key=lambda way: way[0])
    return total, steps


def losses(kind: Kind, collective: str, seconds: Times) -> dict[int, dict[str, float]]:
    """Return the losses of the algorithms of `collective`, by size in bytes and algorithm.

    `seconds` has the simulated times. A loss is the logarithm of an algorithm's time divided by the fastest time.
    `DOUBT` is added for large arrays if the algorithm is not in `kind.trusted`. Algorithms that are much slower than
    the fastest are left out.
    """
    found: dict[int, dict[str, float]] = {}
    for nbytes, everything in seconds.items():
        aware = {name: value for name, value in everything.items() if (collective, name) in kind.aware}
        here = aware if aware and nbytes >= kind.from_size else everything
        fastest = min(here.values())
        found[nbytes] = {
            name: log(value / fastest) + (DOUBT if nbytes >= kind.from_size and name not in kind.trusted else 0.0)
            for name, value in here.items()
            if value <= TOLERANCE * fastest
        }
    return found


Bracket: TypeAlias = "tuple[int, int]"  # the indices of the first and the last value of a run


def brackets(count: int, cost: Callable[[int, int], float]) -> tuple[float, list[Bracket]]:
    """Divide the integers 0 to `count` - 1 into consecutive ranges, so that the sum of their costs is smallest.

    `cost(first, last)` is the cost of one range. Return the sum and the ranges.
    """
    best: list[tuple[float, list[Bracket]]] = [(0, [])]
    for last in range(count):
        ways = ((best[first][0] + cost(first, last), [*best[first][1], (first, last)]) for first in range(last + 1))
        best.append(min(ways, key=lambda way: (way[0], len(way[1]))))
    return best[-1]


def rows(collective: str, kind: Kind, found: Mapping[tuple[int, int], Times]) -> Iterator[Row]:
    """The rows for one collective in groups of that kind."""

    cells = {where: losses(kind, collective, seconds) for where, seconds in found.items()}

    @cache
    def steps(outer: Bracket, inner: Bracket) -> tuple[float, Steps]:
        wanted = [cells[o, i] for o in kind.outer[outer[0] : outer[1] + 1] for i in kind.inner[inner[0] : inner[1] + 1]]
        return ladder(wanted)

    @cache
    def inside(first: int, last: int) -> tuple[float, list[Bracket]]:
        return brackets(len(kind.inner), lambda low, high: steps((first, last), (low, high))[0])

    for outer in brackets(len(kind.outer), lambda first, last: inside(first, last)[0])[1]:
        for inner in inside(*outer)[1]:
            where = kind.outer[(outer[0] + outer[1]) // 2], kind.inner[(inner[0] + inner[1]) // 2]
            sizes = list(found[where])
            begin = 0
            for upto, name in steps(outer, inner)[1]:
                end = sizes.index(upto) + 1
                middle = sizes[(begin + end - 1) // 2]
                reason = _reason(name, kind.group(*where), middle, found[where][middle])
                begin = end
                most = border(upto, sizes[end]) if end < len(sizes) else ANY_SIZE
                row = Row(collective, (), ANY_RANKS, most, name, reason)
                yield kind.row(row, _span(kind.outer, outer), _span(kind.inner, inner))


def _span(values: Sequence[int], run: Bracket) -> tuple[int, int]:
    """The range from the first value of a run to just below the next run; the last run has no end."""
    last = run[1]
    return values[run[0]], ANY_SIZE if last + 1 == len(values) else values[last + 1] - 1


def _reason(name: str, group: Group, nbytes: int, seconds: Mapping[str, float]) -> str:
    where = f"{group.hosts}x{group.per_host}" if group.per_host > 1 < group.hosts else f"{max(group)}"
    others = sorted((value, other) for other, value in seconds.items() if other != name)
    output = f"simulated {_us(seconds[name])} us among {where} at {bytes_text(nbytes)}"
    return output + (f", {others[0][1]} {_us(others[0][0])}" if others else "")


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.3g}" if seconds < 1e-3 else f"{seconds * 1e6:.0f}"


def contested() -> list[tuple[str, int]]:
    """Return all pairs of a collective that has several algorithms and an index into the list `KINDS`."""
    return [
        (name, number) for number in range(len(KINDS)) for name in COLLECTIVES if len(registry.algorithms(name)) > 1
    ]


def _work(what: tuple[str, int]) -> list[Row]:
    collective, number = what
    return list(rows(collective, KINDS[number], simulated(collective, KINDS[number])))


def module(found: Sequence[tuple[Kind, Table]]) -> str:
    parts = [f'# {kind.name}\n{kind.constant}: Final = """\n{text(table)}"""\n' for kind, table in found]
    head = (
        '"""Algorithm table rows for groups that nobody has measured, written by `python -m tools.model_defaults`.\n\n'
        "Invariant: nobody edits this file. By the simulator's costs, each row's algorithm is fastest or nearly so.\n"
        '"""\n\n'
        "from __future__ import annotations\n\n"
        "from typing import Final\n\n"
    )
    return head + "\n".join(parts)


def main() -> int:
    wanted = contested()
    with ProcessPoolExecutor() as pool:
        found = dict(zip(wanted, pool.map(_work, wanted), strict=True))
    tables = [
        (kind, Table(tuple(row for what in wanted if what[1] == number for row in found[what])))
        for number, kind in enumerate(KINDS)
    ]
    FILE.write_text(module(tables))
    return 0


if __name__ == "__main__":
    sys.exit(main())
