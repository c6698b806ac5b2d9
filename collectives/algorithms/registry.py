"""The registry of algorithms, by collective and name: the library's own and those of users.

Invariant: a name means one algorithm for as long as the process runs, so cached schedules stay valid.
"""

from __future__ import annotations

from collections.abc import Callable

from collectives.native.spelling import hint
from collectives.schedule.algorithm import Algorithm, Function, any_size, schedule_of
from collectives.schedule.conditions import COLLECTIVES, collective
from collectives.schedule.form import Schedule
from collectives.schedule.layout import Layout

_registry: dict[str, dict[str, Algorithm]] = {name: {} for name in COLLECTIVES}


def algorithm(
    collective: str,
    *,
    name: str | None = None,
    sizes: Callable[[int], bool] = any_size,
    in_place: bool = False,
    uneven: bool = False,
    hosts: bool = False,
    in_order: bool = False,
) -> Callable[[Function], Algorithm]:
    """Returns a decorator that registers a function as an algorithm for `collective`.

    The function has the parameters (rank, size), then root if the collective has one, then layout if `hosts` is set. It
    returns a `Schedule`, the steps that this rank takes.

    - `name`: the algorithm's name, by default that of the function
    - `sizes(size)`: whether the algorithm works for that many ranks
    - `in_place`: it also works if IN and OUT, the input and output buffers, are the same memory (allreduce, reduce,
      scan and exscan)
    - `uneven`: it also works if blocks differ in size
    - `hosts`: its schedules depend on which ranks share a host
    - `in_order`: it combines operands in the order of ranks, so it also works for reductions that are not commutative

    `verify` checks these properties. Raises ValueError for an unknown collective, an invalid name, or a name that is in
    use.
    """

    def register(function: Function) -> Algorithm:
        return add(Algorithm(collective, name or function.__name__, function, sizes, in_place, uneven, hosts, in_order))

    return register


def add(new: Algorithm) -> Algorithm:
    """Register an algorithm; ValueError if its name is in use."""
    known = _registry[new.collective]
    if new.name in known:
        raise ValueError(f"there is already an algorithm {new}")
    known[new.name] = new
    return new


def get(collective_name: str, name: str) -> Algorithm:
    """Returns the algorithm `name` of the collective `collective_name`. A "-" in `name` counts as "_".

    Raises ValueError if there is no such algorithm; the message lists the known names.
    """
    known = _registry[collective(collective_name).name]
    try:
        return known[name.replace("-", "_")]
    except KeyError:
        there_are = ", ".join(known) or "none"
        raise ValueError(
            f"there is no algorithm {name!r} for {collective_name}{hint(name, known)}; there are: {there_are}"
        ) from None


def algorithms(collective_name: str, size: int | None = None, *, uneven: bool = False) -> tuple[Algorithm, ...]:
    """Returns all algorithms for the collective `collective_name`, in the order in which they were registered.

    `size`: only algorithms that work for so many ranks. `uneven`: only algorithms that allow blocks of different sizes.
    """
    known = _registry[collective(collective_name).name].values()
    return tuple(a for a in known if (size is None or a.sizes(size)) and (a.uneven or not uneven))


def schedule(
    collective_name: str, name: str, rank: int, size: int, root: int = 0, layout: Layout | None = None
) -> Schedule:
    """Returns a `Schedule`, the steps that `rank` takes in the algorithm `name`. Schedules are cached.

    `layout` says which ranks share a host; None: each rank has a host of its own. Raises ValueError for an unknown
    collective or algorithm, or an invalid rank, size, root or layout.
    """
    return schedule_of(get(collective_name, name), rank, size, root, layout)
