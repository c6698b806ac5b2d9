"""Makes the call for a benchmark case, with its communicator and arrays, so that the call can be repeated and timed.

Invariant: the call is one that a user would write, with all checks of its arguments. Arrays are made once per case and
used for all measurements of the case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from collectives import Communicator
from collectives.arrays.array import dtype_of
from collectives.bench import sequence
from collectives.bench.cases import IN_PLACE, Case
from collectives.bench.data import Data
from collectives.bench.traces import buckets
from collectives.bench.values import Array, touched

WITH_OUT: Final = ("allreduce", "reduce", "reduce_scatter", "scan", "exscan", "allgather", "alltoall")


@dataclass(frozen=True, slots=True)
class Arrays:
    """One rank's input and output arrays for a collective that is measured.

    `out` is passed to the collective as `out=`, unless the input array also receives the result. `shared` tells whether
    the arrays are in shared memory, from `comm.empty`.
    """

    inp: Array
    out: Array
    shared: bool

    @staticmethod
    def of(comm: Communicator, case: Case, shared: bool, needs_out: bool) -> Arrays:
        """Allocate the input and output arrays of this rank for `case`, a collective of a given size.

        If `shared`, the arrays are in shared memory, from `comm.empty`; otherwise they are NumPy arrays. `needs_out`
        tells whether the collective needs a separate output array.
        """
        dtype = dtype_of(case.dtype)
        ranks = case.ranks

        def array(elements: int, parts: bool) -> Array:
            shape = (ranks, elements // ranks) if parts else (elements,)
            return touched(comm.empty(shape, dtype) if shared else np.empty(shape, dtype))

        inp = array(case.elements_in, case.collective == "scatter")
        given = needs_out and case.collective in WITH_OUT
        out = array(case.elements_out, case.collective == "allgather") if given else inp[:0]
        return Arrays(inp, out, shared)


@dataclass(frozen=True, slots=True)
class Bound:
    """A collective together with its arrays and arguments, ready to be run and timed.

    `call()` runs the collective once and returns its result.
    """

    case: Case
    rank: int
    arrays: Arrays
    in_place: bool
    call: Callable[[], Any]
    settle: None = None  # a call is complete when it returns

    def renew(self) -> None:
        """Overwrite the input array of a measured collective, so that it is in the CPU's caches.

        In a user's program the input would be in the caches, too, since the program has just computed it.
        """
        self.arrays.inp.fill(1)

    def wrong(self, salt: int) -> int:
        """Run the measured collective once on test data; return the number of wrong elements in this rank's result.

        `salt` selects the test data; each value gives other data.
        """
        if self.case.collective == "barrier":
            self.call()
            return 0
        data = Data(self.case, self.arrays.inp.dtype, self.rank, salt)
        if self.case.collective == "broadcast":
            data.spoil(self.arrays.inp)
        elif not self.in_place and self.arrays.out.size:
            data.spoil(self.arrays.out)
        data.fill(self.arrays.inp)
        result = self.call()
        return data.wrong(result)


def bind(comm: Communicator, case: Case, place: str, arrays: Arrays) -> Bound:
    """Return the collective described by `case`, with its arguments, ready to be run and timed on this rank.

    `comm` is the communicator. `place` is "in-place" or "out-of-place". `arrays` are the input and output arrays.
    """
    inp = arrays.inp
    out = inp if place == IN_PLACE else arrays.out

    def memory(elements: int, dtype: Any) -> Array:
        return touched(comm.empty(elements, dtype) if arrays.shared else np.empty(elements, dtype))

    call, _ = sequence.bind(case, inp, out, partial(_one, comm), memory)
    return Bound(case, comm.rank, arrays, place == IN_PLACE or case.bucket > 0, call)


def _one(comm: Communicator, case: Case, x: Array, out: Array) -> tuple[Callable[[], Any], Array]:
    """A function that runs the collective of `case` on `x`, and the array of its result, `out`, which may be `x`."""
    return call_of(comm, case, x, out), out


def call_of(comm: Communicator, case: Case, x: Any, out: Any) -> Callable[[], Any]:
    """Return a lambda that runs the collective of `case` on `x`.

    `x` and `out` are arrays in host memory or on a CUDA device. For other systems, too, the benchmark calls lambdas.
    `functools.partial` would cost time, because it makes a dictionary of the keyword arguments in each call.
    """
    op, root, algorithm = case.op, case.root, case.algorithm
    match case.collective:
        case "allreduce":
            return lambda: comm.allreduce(x, op, out=out, algorithm=algorithm)
        case "reduce_scatter":
            return lambda: comm.reduce_scatter(x, op, out=out, algorithm=algorithm)
        case "scan":
            return lambda: comm.scan(x, op, out=out, algorithm=algorithm)
        case "exscan":
            return lambda: comm.exscan(x, op, out=out, algorithm=algorithm)
        case "reduce":
            target = out if comm.rank == root else None
            return lambda: comm.reduce(x, op, root, out=target, algorithm=algorithm)
        case "allgather":
            return lambda: comm.allgather(x, out=out, algorithm=algorithm)
        case "alltoall":
            return lambda: comm.alltoall(x, out=out, algorithm=algorithm)
        case "broadcast":
            return lambda: comm.broadcast(x, root, algorithm=algorithm)
        case "gather":
            return lambda: comm.gather(x, root, algorithm=algorithm)
        case "scatter":
            whole = x if comm.rank == root else None
            return lambda: comm.scatter(whole, root, algorithm=algorithm)
        case "barrier":
            return lambda: comm.barrier(algorithm=algorithm)
        case other:
            raise AssertionError(other)


def algorithm_of(comm: Communicator, case: Case) -> str:
    """Return the name of the algorithm that the communicator `comm` runs for the collective and size in `case`.

    If `case` is a sequence of allreduces of gradients, return their number as text, such as "3_calls" or "3_buckets".
    """
    if case.bucket:
        return f"{len(buckets(case.parts, case.bucket // case.itemsize))}_buckets"
    if case.parts:
        return f"{len(case.parts)}_calls"
    if case.algorithm != "auto":
        return case.algorithm
    reported = dict(_pairs(comm.explain(case.collective, case.nbytes, case.dtype)))
    return reported["algorithm"].partition(":")[0]


def engine_of(comm: Communicator, case: Case) -> str:
    """Return the name of the mechanism that runs `case` on arrays in CUDA memory: "leader", "nccl" or "staging"."""
    if case.algorithm != "auto":
        return case.algorithm
    reported = dict(_pairs(comm.explain(case.collective, case.nbytes, case.dtype)))
    return reported["on"].split()[1].rstrip(":")  # the line is "on CUDA     leader: ..."


def transports_of(comm: Communicator) -> dict[str, int]:
    """The number of this rank's peers for each transport."""
    reported = dict(_pairs(comm.explain("barrier", 0, "uint8")))
    pairs = (entry.split(" over ") for entry in reported["peers"].split(", ") if " over " in entry)
    return {kind: int(number) for number, kind in pairs}


def _pairs(explanation: str) -> list[tuple[str, str]]:
    """The lines "name   text" at the head of an explanation."""
    head = explanation.partition("\n\n")[0].splitlines()[1:]
    words = [line.split(maxsplit=1) for line in head]
    return [(entry[0], entry[1]) for entry in words if len(entry) == 2]
