"""Costs for the simulator (latencies, bandwidths), fitted to measured times of collectives.

Invariant: the fit uses relative errors, so that short and long calls count alike. It minimises the sum of absolute
instead of squared errors, so that a few disturbed times have little effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from collectives.algorithms import registry
from collectives.simulation.cost import Costs
from collectives.simulation.simulate import simulate
from collectives.simulation.topology import Topology

# Costs of two engines that run only in shared memory: the board (short messages) and the pool (long allreduces).
SHARED_MEMORY: Final = ("pool_bandwidth", "board", "board_overhead", "board_switch")
# Costs inside one host. A measurement inside a host does not show the costs between hosts.
FITTED: Final = (
    *("call", "inside_latency", "inside_overhead", "inside_gap", "inside_bandwidth"),
    *("reduce_bandwidth", "memory_bandwidth"),
    *("slice", "switch", "stagger", "staging", "cache", "cached"),
    *SHARED_MEMORY,
)
START: Final = Costs(
    call=4e-7,
    inside_latency=2e-7,
    inside_overhead=1e-7,
    reduce_bandwidth=18e9,
    memory_bandwidth=30e9,
    switch=1e-6,
    stagger=4e-6,
    staging=5e-7,
    cached=1.3,
    pool_bandwidth=8e9,
    board=5e-7,
    board_overhead=5e-8,
    board_switch=5e-6,
)
_GAP: Final = 1e-6  # where the search for a gap between messages begins
_ONLY_SHARED: Final = frozenset({"switch", "stagger", "board_switch"})

_ROUNDS: Final = 12
_NUDGE: Final = 0.05  # change of the logarithm of a cost, to see which predictions depend on it
_FARTHEST: Final = 0.7  # the most by which the logarithm of a cost changes in one round
_DAMPING: Final = 1e-2
_FLOOR: Final = 0.05  # errors of logarithms below this limit all have the same weight
_LEAST: Final = 5e-3  # part of the error that a round has to remove for another round to follow

Array = npt.NDArray[np.float64]


class Case(NamedTuple):
    """One call of a collective: the simulator predicts its time, which is compared with the measured time.

    All `ranks` ranks are on one host, and use at most `cores` of its cores. `nbytes`: the size of a rank's input or
    output array, whichever is larger.
    """

    collective: str
    algorithm: str
    ranks: int
    cores: int
    nbytes: int

    @property
    def topology(self) -> Topology:
        return Topology(self.ranks, cores=min(self.cores, self.ranks))


class Measured(NamedTuple):
    case: Case
    seconds: float


def predict(cases: Iterable[Case], costs: Costs) -> Array:
    """Returns the seconds that the simulator predicts for each call in `cases`, as a float64 array.

    `costs`: the simulator's costs, such as latencies. The function is faster if cases are grouped by number of ranks.
    """
    return np.array(
        [simulate(registry.get(c.collective, c.algorithm), c.ranks, c.nbytes, c.topology, costs).seconds for c in cases]
    )


def errors(measured: Sequence[Measured], costs: Costs) -> Array:
    """Returns the relative error of each predicted time: 0.1 if it is 10 % more than the measured time.

    Errors are negative if predictions are too low. `costs`: the simulator's costs, such as latencies.
    """
    seconds = np.array([m.seconds for m in measured])
    found: Array = predict((m.case for m in measured), costs) / seconds - 1
    return found


def ordered(measured: Sequence[Measured], costs: Costs, apart: float = 0.2) -> tuple[int, int]:
    """Returns how many pairs of algorithms the simulator orders rightly, and how many pairs there are.

    A pair is two algorithms of one collective, measured with the same number of ranks and bytes. The slower algorithm
    took at least `apart` more time than the faster: 0.2 is 20 %. `costs`: the simulator's costs, such as latencies.
    """
    seconds = dict(zip((m.case for m in measured), predict((m.case for m in measured), costs).tolist(), strict=True))
    pairs = [
        (seconds[slow.case], seconds[fast.case])
        for slow in measured
        for fast in measured
        if slow.case._replace(algorithm="") == fast.case._replace(algorithm="")
        and slow.seconds >= (1 + apart) * fast.seconds
    ]
    return sum(slow > fast for slow, fast in pairs), len(pairs)


def starts(transport: str) -> tuple[Costs, ...]:
    """Returns the costs at which the search for the costs of this transport begins: one search for each of them."""
    if transport == "shm":
        return (START,)
    plain = replace(START, **dict.fromkeys(SHARED_MEMORY, 0.0))
    return plain, replace(plain, inside_gap=_GAP)  # messages pass one at a time through what carries them, or do not


def fit(
    measured: Sequence[Measured], begin: Sequence[Costs] = (START,), say: Callable[[float], None] | None = None
) -> Costs:
    """Returns the simulator's costs, such as latencies, with which its predictions are nearest to measured times.

    These costs minimise the mean absolute difference between the logarithms of predicted and measured seconds. A search
    begins at each of `begin`, and makes Gauss-Newton steps in the logarithms of costs (iteratively reweighted least
    squares); the best one counts. Costs that influence no prediction, or are 0 at the beginning, keep their values.
    `say` is called with the fraction of the steps that are done, 0 to 1. Raises ValueError if nothing was measured.
    """
    if not measured:
        raise ValueError("no costs can be found where nothing was measured")

    def part(number: int) -> Callable[[float], None] | None:
        return None if say is None else lambda share: say((number + share) / len(begin))

    found = [_search(measured, start, part(number)) for number, start in enumerate(begin)]
    return min(found, key=lambda one: one[1])[0]


def _search(measured: Sequence[Measured], start: Costs, say: Callable[[float], None] | None) -> tuple[Costs, float]:
    """Returns the best costs of the search from `start`, and the mean absolute difference of logarithms."""
    measured = sorted(measured, key=lambda m: m.case)
    cases, seconds = [m.case for m in measured], np.log([m.seconds for m in measured])
    shared = any(case.ranks > case.cores for case in cases)
    names = [name for name in FITTED if shared or name not in _ONLY_SHARED]
    if not shared:
        start = replace(start, **dict.fromkeys(_ONLY_SHARED, 0.0))
    names = [name for name in names if getattr(start, name) > 0]

    def residuals(costs: Costs) -> Array:
        found: Array = np.log(predict(cases, costs)) - seconds
        return found

    best, now = start, residuals(start)
    for number in range(_ROUNDS):
        if say is not None:
            say(number / _ROUNDS)
        slopes = np.stack([(residuals(_moved(best, {name: _NUDGE})) - now) / _NUDGE for name in names], axis=1)
        weights = 1 / np.maximum(np.abs(now), _FLOOR)
        weighed = slopes * weights[:, None]
        square = weighed.T @ slopes + _DAMPING * len(cases) * np.eye(len(names))
        step = np.clip(np.linalg.solve(square, -(weighed.T @ now)), -_FARTHEST, _FARTHEST)
        before = float(np.abs(now).mean())
        for shorter in (1.0, 0.5, 0.25, 0.1):
            trial = _moved(best, dict(zip(names, (shorter * step).tolist(), strict=True)))
            found = residuals(trial)
            if np.abs(found).mean() < np.abs(now).mean():
                best, now = trial, found
                break
        if before - float(np.abs(now).mean()) < _LEAST * before:
            break
    return best, float(np.abs(now).mean())


def _moved(costs: Costs, by: dict[str, float]) -> Costs:
    """Returns `costs`, with each number in `by` added to the logarithm of the cost of that name."""
    values: dict[str, Any] = {name: getattr(costs, name) * float(np.exp(move)) for name, move in by.items()}
    return replace(costs, **{name: max(1.0, value) if name == "cached" else value for name, value in values.items()})
