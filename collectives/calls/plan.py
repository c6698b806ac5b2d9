"""Plan: a call that is prepared once and runs on the same arrays every time.

Invariant: a plan keeps its arrays and its communicator alive. The library keeps no reference to the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from collectives.arrays.cuda import on_cuda
from collectives.calls.work import Work


class Plan(Protocol):
    """A call prepared for many runs: `plan = comm.allreduce_plan(x, out=x)`, then `plan()` for each run.

    Each run reads and writes the current contents of the same arrays.
    """

    def __call__(self) -> Any:
        """Run the call on the current contents of its arrays; returns `out`, which holds the result."""

    @property
    def out(self) -> Any:
        """The array that every run of the plan writes and returns; None if this rank gets no result."""

    @property
    def start(self) -> Callable[[], Work[Any]]:
        """`plan.start()` runs the call in the background."""


class StepwisePlan:
    """A prepared call that runs through Python code, because it takes more than one operation of the C++ engine."""

    __slots__ = ("_out", "_owner", "_run", "_start")

    def __init__(self, out: Any, run: Callable[[], Any], start: Callable[[], Work[Any]], owner: object) -> None:
        self._out = out
        self._run = run
        self._start = start
        self._owner = owner

    def __call__(self) -> Any:
        return self._run()

    @property
    def out(self) -> Any:
        return self._out

    @property
    def start(self) -> Callable[[], Work[Any]]:
        return self._start


def check_planned(array: Any, name: str) -> None:
    """Raises TypeError or ValueError if a prepared collective (a plan) could use `array` only through a copy.

    `name`: what the error calls `array`. Arrays on a CUDA device are not checked here, but by `Runner.plan`, which
    knows whether NCCL runs the call.
    """
    if on_cuda(array):
        return
    if type(array) is not np.ndarray:
        raise TypeError(f"a plan needs NumPy arrays, or arrays on a CUDA device, but {name} is {type(array).__name__}")
    if not array.flags.c_contiguous:
        raise ValueError(f"a plan needs arrays without gaps, in C order, but {name} is not contiguous")
    if not array.flags.aligned:
        raise ValueError(f"a plan needs aligned arrays, but {name} is not aligned to its dtype {array.dtype}")
