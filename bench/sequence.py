"""Turns a case of many gradients into one timed call: an allreduce for each, or for buckets of several gradients.

Invariant: this library and the other systems are timed with this code; each provides only the allreduce of one array.
The time with buckets includes copying gradients into buckets and back, since a framework keeps gradients outside
buckets. Needs no package but NumPy, because other systems run this file with a Python of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from collectives.bench.cases import Case
from collectives.bench.traces import buckets

Bound = tuple[Callable[[], Any], Any]  # the call, and the array that holds its result
One = Callable[[Case, Any, Any], Bound]


def bind(case: Case, inp: Any, out: Any, one: One, memory: Callable[[int, Any], Any] = np.zeros) -> Bound:
    """Return a function that runs the collective, or the many allreduces, of `case`, and the array of the results.

    The array is `inp` or `out`. `one(case, input, output)` returns such a function and array for a single collective.
    `memory(elements, dtype)` allocates the buckets in which gradients are joined.
    """
    if not case.parts:
        return one(case, inp, out)
    bounds = [0, *accumulate(case.parts)]
    if case.bucket:
        return _fused(case, inp, bounds, one, memory)
    calls, results = [], []
    for first, last in pairwise(bounds):
        x, y = inp[first:last], out[first:last]
        call, result = _bound(one, _part(case, last - first), x, x if out is inp else y)
        calls.append(call)
        results.append(result is not y)

    def sequence() -> Any:
        for call in calls:
            call()
        return inp if all(results) else out

    return sequence, inp if all(results) else out


def _fused(case: Case, inp: Any, bounds: list[int], one: One, memory: Callable[[int, Any], Any]) -> Bound:
    groups = buckets(case.parts, case.bucket // case.itemsize)
    largest = max(bounds[last] - bounds[first] for first, last in groups)
    source, target = memory(largest, inp.dtype), memory(largest, inp.dtype)
    steps = []
    for first, last in groups:
        n, start = bounds[last] - bounds[first], bounds[first]
        call, result = _bound(one, _part(case, n), source[:n], target[:n])
        pieces = [slice(bounds[i] - start, bounds[i + 1] - start) for i in range(first, last)]
        mine = [inp[bounds[i] : bounds[i + 1]] for i in range(first, last)]
        into = [source[piece] for piece in pieces]
        back = [result[piece] for piece in pieces]
        steps.append((mine, into, call, back))

    def sequence() -> Any:
        for mine, into, call, back in steps:
            for gradient, place in zip(mine, into, strict=True):
                np.copyto(place, gradient)
            call()
            for gradient, place in zip(mine, back, strict=True):
                np.copyto(gradient, place)
        return inp

    return sequence, inp


def _bound(one: One, part: Case, x: Any, y: Any) -> Bound:
    call, result = one(part, x, y)
    if result is None:
        raise NotImplementedError("this system makes new arrays, which a sequence has no place for")
    return call, result


def _part(case: Case, count: int) -> Case:
    return replace(case, count=count, trace="", parts=(), bucket=0)
