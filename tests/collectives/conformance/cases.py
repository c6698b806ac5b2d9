"""The cases that every communicator has to pass, and how a rank runs one.

Invariant: a case is a value that says everything, seeds included, so that each rank makes the same list by
itself, knows all ranks' inputs, and checks what it gets alone.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from collectives import Communicator, Op, Status, algorithms
from tests.collectives.conformance.case import BY_NAME, Case, inputs_of, reduction_of, values
from tests.collectives.conformance.reference import (
    COMPLEXES,
    DTYPES,
    FLOATS,
    IDENTITIES,
    Array,
    ops,
    reduced,
    same,
)
from tests.depth import LONG


def run(comm: Communicator, case: Case) -> str:
    """Make the call of this rank and check what comes back; empty if all is right."""
    return _RUN[case.collective](comm, case)


def _call(comm: Communicator, case: Case, name: str, *args: Any, **options: Any) -> Any:
    if case.algorithm != "auto":
        options["algorithm"] = case.algorithm
    if case.background:
        return getattr(comm, f"{name}_async")(*args, **options).result()
    return getattr(comm, name)(*args, **options)


def _placed(case: Case, x: Array, result_shape: tuple[int, ...]) -> tuple[Array, dict[str, Any]]:
    """How `x` is passed, and the `out` option."""
    if case.place == "strided":
        wider = np.zeros((*x.shape[:-1], 2 * x.shape[-1]) if x.ndim else x.shape, x.dtype)
        view = wider[..., ::2] if x.ndim else wider
        view[...] = x
        return view, {}
    if case.place == "out":
        return x, {"out": np.zeros(result_shape, x.dtype)}
    return x, {"out": x} if case.place == "in" else {}


def _checked(case: Case, comm: Communicator, got: Any, expected: Array, x: Array, before: Array, options: Any) -> str:
    if "out" in options and got is not options["out"]:
        return "did not return out"
    if case.place != "in" and not np.array_equal(x, before, equal_nan=False):
        return "changed its input"
    return same(got, expected, BY_NAME[case.dtype], comm.size)


def _reduction(comm: Communicator, case: Case) -> str:
    mine = values(case, comm.rank, case.shape)
    x, options = _placed(case, mine.copy(), case.shape)
    expected = reduction_of(case, case.shape, comm.size)
    if case.collective == "allreduce":
        got = _call(comm, case, "allreduce", x, case.op, **options)
        return _checked(case, comm, got, expected, x, mine, options)
    root = case.root % comm.size
    got = _call(comm, case, "reduce", x, case.op, root, **options)
    if comm.rank != root:
        return "" if got is None else "gave something on a rank that is not the root"
    return _checked(case, comm, got, expected, x, mine, options)


def _same_bits(comm: Communicator, case: Case) -> str:
    """Values for which the order of additions matters: ranks must agree on every bit, and about on the sum."""
    inputs = [np.random.default_rng([case.seed, r]).normal(size=case.shape) for r in range(comm.size)]
    x = inputs[comm.rank].astype(BY_NAME[case.dtype])
    got = _call(comm, case, "allreduce", x, case.op)
    wrong = same(got, reduced([i.astype(x.dtype) for i in inputs], case.op), x.dtype, 4 * comm.size)
    digests = comm.allgather(np.array(zlib.crc32(got.tobytes())))
    return wrong or ("" if (digests == digests[0]).all() else f"ranks differ: {digests}")


def _broadcast(comm: Communicator, case: Case) -> str:
    root = case.root % comm.size
    x = values(case, comm.rank, case.shape).copy()
    got = _call(comm, case, "broadcast", x, root)
    return same(got, values(case, root, case.shape), x.dtype, 1) or ("" if got is x else "did not return x")


def _allgather(comm: Communicator, case: Case) -> str:
    inputs = inputs_of(case, [case.shape] * comm.size)
    x, options = _placed(case, inputs[comm.rank].copy(), (comm.size, *case.shape))
    if case.collective == "allgather":
        got = _call(comm, case, "allgather", x, **options)
        return _checked(case, comm, got, np.stack(inputs), x, inputs[comm.rank], options)
    got = _call(comm, case, "gather", x, case.root % comm.size)
    if comm.rank != case.root % comm.size:
        return "" if got is None else "gave something on a rank that is not the root"
    return _checked(case, comm, got, np.stack(inputs), x, inputs[comm.rank], {})


def _rows(case: Case, rank: int) -> tuple[int, ...]:
    """Uneven first axes, some of them empty."""
    return (_extent(case.seed, rank, case.shape[0]), *case.shape[1:])


@functools.cache
def _extent(seed: int, rank: int, most: int) -> int:
    return int(np.random.default_rng([seed, rank]).integers(0, most + 1))


def _gatherv(comm: Communicator, case: Case) -> str:
    inputs = inputs_of(case, [_rows(case, r) for r in range(comm.size)])
    x, _ = _placed(case, inputs[comm.rank].copy(), ())
    if case.collective == "allgatherv":
        return same(_call(comm, case, "allgatherv", x), np.concatenate(inputs), x.dtype, 1)
    got = _call(comm, case, "gatherv", x, case.root % comm.size)
    if comm.rank != case.root % comm.size:
        return "" if got is None else "gave something on a rank that is not the root"
    return same(got, np.concatenate(inputs), x.dtype, 1)


def _reduce_scatter(comm: Communicator, case: Case) -> str:
    rows, shape = case.shape[0], (case.shape[0] * comm.size, *case.shape[1:])
    mine = values(case, comm.rank, shape)
    x, options = _placed(case, mine.copy(), case.shape)
    expected = reduction_of(case, shape, comm.size)[rows * comm.rank : rows * (comm.rank + 1)]
    got = _call(comm, case, "reduce_scatter", x, case.op, **options)
    return _checked(case, comm, got, expected, x, mine, options)


def _reduce_scatterv(comm: Communicator, case: Case) -> str:
    counts = [_rows(case, r)[0] for r in range(comm.size)]
    shape, start = (sum(counts), *case.shape[1:]), sum(counts[: comm.rank])
    mine = values(case, comm.rank, shape)
    expected = reduction_of(case, shape, comm.size)[start : start + counts[comm.rank]]
    x, options = _placed(case, mine.copy(), expected.shape)
    got = _call(comm, case, "reduce_scatterv", x, counts, case.op, **options)
    return _checked(case, comm, got, expected, x, mine, options)


def _scan(comm: Communicator, case: Case) -> str:
    mine = values(case, comm.rank, case.shape)
    x, options = _placed(case, mine.copy(), case.shape)
    got = _call(comm, case, case.collective, x, case.op, **options)
    ranks = comm.rank + (case.collective == "scan")
    if not ranks:  # the identity, which may be infinite
        right = got.dtype == x.dtype and got.shape == case.shape and (got == IDENTITIES[case.op](x.dtype)).all()
        return "" if right else f"gave rank 0 {got!r}"
    return _checked(case, comm, got, reduction_of(case, case.shape, ranks), x, mine, options)


def _function(comm: Communicator, case: Case) -> str:
    """Functions for which the order of ranks matters, and ufuncs: all reductions, with the same bits everywhere."""
    inputs = inputs_of(case, [(comm.size * case.shape[0], *case.shape[1:])] * comm.size)
    x, rows, root = inputs[comm.rank].copy(), case.shape[0], case.root % comm.size
    mine = slice(rows * comm.rank, rows * (comm.rank + 1))
    for op, fold in ((Op(_left), lambda a, b: a), (Op(_right, elementwise=True), lambda a, b: b), (np.maximum, None)):
        up_to = list(itertools.accumulate(inputs, fold or np.maximum))
        name = op if isinstance(op, np.ufunc) else op.name
        wrong = [same(comm.allreduce(x, op), up_to[-1], x.dtype, 1)]
        got = comm.reduce(x, op, root)
        wrong += [same(got, up_to[-1], x.dtype, 1) if comm.rank == root else "" if got is None else "gave something"]
        wrong += [same(comm.reduce_scatter_async(x, op).wait(), up_to[-1][mine], x.dtype, 1)]
        wrong += [same(comm.scan(x, op), up_to[comm.rank], x.dtype, 1)]
        before = comm.exscan(x, op)
        wrong += [
            same(before, up_to[comm.rank - 1], x.dtype, 1) if comm.rank else "" if before is None else "gave something"
        ]
        both = x.copy()
        wrong += [same(comm.allreduce(both, op, out=both), up_to[-1], x.dtype, 1)]
        if any(wrong):
            return f"{name}: {wrong}"
    return "" if np.array_equal(x, inputs[comm.rank]) else "changed its input"


def _left(a: Array, b: Array) -> Array:
    return a


def _right(a: Array, b: Array) -> Array:
    return b


def _plan(comm: Communicator, case: Case) -> str:
    """A plan of everything that has one, three times on changing data, and once in the background."""
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    x, rows = np.zeros((n, 2), np.int64), np.zeros((rank + 1, 2), np.int64)
    whole = np.zeros((n * (n + 1) // 2, 2), np.int64)
    counts = [r + 1 for r in range(n)]
    root = case.root % n
    of_root = x if rank == root else None
    got = np.zeros_like(x)
    plans = {
        "allreduce": comm.allreduce_plan(x),
        "reduce": comm.reduce_plan(x, "max", root),
        "scan": comm.scan_plan(x),
        "exscan": comm.exscan_plan(x),
        "reduce_scatter": comm.reduce_scatter_plan(x),
        "reduce_scatterv": comm.reduce_scatterv_plan(whole, counts),
        "function": comm.allreduce_plan(x, np.add),
        "allgather": comm.allgather_plan(x),
        "allgatherv": comm.allgatherv_plan(rows),
        "gather": comm.gather_plan(x, root),
        "gatherv": comm.gatherv_plan(rows, root),
        "scatter": comm.scatter_plan(of_root, root),
        "scatterv": comm.scatterv_plan(whole if rank == root else None, counts if rank == root else None, root),
        "alltoall": comm.alltoall_plan(x),
        "alltoallv": comm.alltoallv_plan(x, [1] * n),
        "barrier": comm.barrier_plan(),
        "sendrecv": comm.sendrecv_plan(x, right, got, left),
    }
    for turn in range(4):
        for array in (x, rows, whole):
            array[...] = 1 + rank + turn
        total, up_to = sum(1 + r + turn for r in range(n)), sum(1 + r + turn for r in range(rank + 1))
        each = [1 + r + turn for r in range(n)]
        expected: dict[str, Any] = {
            "allreduce": np.full_like(x, total),
            "reduce": np.full_like(x, n + turn) if rank == root else None,
            "scan": np.full_like(x, up_to),
            "exscan": np.full_like(x, up_to - 1 - rank - turn),
            "reduce_scatter": np.full((1, 2), total),
            "reduce_scatterv": np.full((rank + 1, 2), total),
            "function": np.full_like(x, total),
            "allgather": np.stack([np.full_like(x, e) for e in each]),
            "allgatherv": np.concatenate([np.full((r + 1, 2), e) for r, e in enumerate(each)]),
            "gather": np.stack([np.full_like(x, e) for e in each]) if rank == root else None,
            "gatherv": np.concatenate([np.full((r + 1, 2), e) for r, e in enumerate(each)]) if rank == root else None,
            "scatter": np.full(2, each[root]),
            "scatterv": np.full((rank + 1, 2), each[root]),
            "alltoall": np.array([[e, e] for e in each]),
            "alltoallv": np.array([[e, e] for e in each]),
            "barrier": None,
            "sendrecv": np.full_like(x, each[left]),
        }
        for name, plan in plans.items():
            result = plan() if turn < 3 else plan.start().wait()
            right_one = result is None if expected[name] is None else np.array_equal(result, expected[name])
            if not right_one or result is not plan.out:
                return f"{name}, turn {turn}: {result!r}, not {expected[name]!r}"
        comm.broadcast_plan(x, root)()
        if not (x == each[root]).all():
            return f"broadcast, turn {turn}: {x!r}"
    comm.send_plan(x, rank)()
    return same(comm.recv_plan(got, rank)(), x, x.dtype, 1)


def _scatter(comm: Communicator, case: Case) -> str:
    root = case.root % comm.size
    if case.collective == "scatter":
        whole = values(case, root, (comm.size, *case.shape))
        x, _ = _placed(case, whole, ())
        got = _call(comm, case, "scatter", x if comm.rank == root else None, root)
        return same(got, whole[comm.rank], whole.dtype, 1)
    counts = [_rows(case, r)[0] for r in range(comm.size)]
    whole = values(case, root, (sum(counts), *case.shape[1:]))
    given = (whole, counts) if comm.rank == root else (None, None)
    start = sum(counts[: comm.rank])
    return same(_call(comm, case, "scatterv", *given, root), whole[start : start + counts[comm.rank]], whole.dtype, 1)


def _alltoall(comm: Communicator, case: Case) -> str:
    rows, rest = case.shape[0], case.shape[1:]
    inputs = inputs_of(case, [(rows * comm.size, *rest)] * comm.size)
    x, options = _placed(case, inputs[comm.rank].copy(), inputs[0].shape)
    expected = np.concatenate([i[rows * comm.rank : rows * (comm.rank + 1)] for i in inputs])
    got = _call(comm, case, "alltoall", x, **options)
    return _checked(case, comm, got, expected, x, inputs[comm.rank], options)


def _alltoallv(comm: Communicator, case: Case) -> str:
    counts = np.random.default_rng(case.seed).integers(0, case.shape[0] + 1, (comm.size, comm.size))
    inputs = [values(case, r, (int(counts[r].sum()), *case.shape[1:])) for r in range(comm.size)]
    ends = np.cumsum(counts, axis=1)
    parts = [i[ends[r, comm.rank] - counts[r, comm.rank] : ends[r, comm.rank]] for r, i in enumerate(inputs)]
    got = _call(comm, case, "alltoallv", inputs[comm.rank], counts[comm.rank])
    return same(got, np.concatenate(parts), inputs[0].dtype, 1)


def _send(comm: Communicator, case: Case) -> str:
    """Everyone to its right neighbour, and back in the background; even ranks send first."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.size == 1:
        return ""
    x, got = values(case, comm.rank, case.shape), np.zeros(case.shape, BY_NAME[case.dtype])
    back = np.zeros_like(got)
    if comm.rank % 2 == 0:
        comm.send(x, right)
        returned = comm.recv(got, left)
        works = [comm.send_async(got, left), comm.recv_async(back, right)]
    else:
        returned = comm.recv(got, left)
        comm.send(x, right)
        works = [comm.recv_async(back, right), comm.send_async(got, left)]
    for work in works:
        work.wait()
    wrong = same(got, values(case, left, case.shape), got.dtype, 1) or same(back, x, x.dtype, 1)
    return wrong or ("" if returned is got else "did not return out")


def _exchange(comm: Communicator, case: Case) -> str:
    """Round the ring and back, to oneself, and to rank 0 from whoever comes first; with room for more."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x, status = values(case, comm.rank, case.shape).reshape(-1), Status()
    got = np.zeros(x.size + 3, x.dtype)
    for dest, source in ((right, left), (left, right), (comm.rank, comm.rank)):
        out = got.copy()
        if case.background:
            comm.sendrecv_async(x, dest, out, source, status=status).wait()
        else:
            comm.sendrecv(x, dest, out, source, status=status)
        if (status.source, status.count) != (source, x.size) or out[x.size :].any():
            return f"{status} instead of {x.size} from {source}"
        if wrong := same(out[: x.size], values(case, source, case.shape).reshape(-1), x.dtype, 1):
            return wrong
    comm.send(x, 0)
    for _ in range(comm.size if comm.rank == 0 else 0):
        out = got.copy()
        work = comm.recv_async(out, status=status) if case.background else None
        result = comm.recv(out, status=status) if work is None else work.wait()
        assert status.source is not None
        if wrong := same(result[: x.size], values(case, status.source, case.shape).reshape(-1), x.dtype, 1):
            return f"from {status.source}: {wrong}"
    comm.barrier()  # what a rank sends next must not come before
    return ""


def _barrier(comm: Communicator, case: Case) -> str:
    """Nobody leaves before the last has come; the clock is the same for all processes of a machine."""
    came = time.monotonic()
    got = _call(comm, case, "barrier")
    times = comm.allgather(np.array([came, time.monotonic()]))
    if times[:, 1].min() < times[:, 0].max():
        return f"a rank left before the last came: {times.tolist()}"
    return "" if got is None else "gave something"


_RUN: dict[str, Callable[[Communicator, Case], str]] = {
    "allreduce": _reduction,
    "same bits": _same_bits,
    "reduce": _reduction,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatterv": _reduce_scatterv,
    "scan": _scan,
    "exscan": _scan,
    "function": _function,
    "plan": _plan,
    "broadcast": _broadcast,
    "allgather": _allgather,
    "allgatherv": _gatherv,
    "gather": _allgather,
    "gatherv": _gatherv,
    "scatter": _scatter,
    "scatterv": _scatter,
    "alltoall": _alltoall,
    "alltoallv": _alltoallv,
    "send": _send,
    "exchange": _exchange,
    "barrier": _barrier,
}
COLLECTIVES = tuple(_RUN)

LARGEST = {100: 5000}  # elements, by bytes of a segment: they are some hundred slices

DTYPES_OF_FUNCTIONS = ("bool", "int16", "bfloat16", "float64")  # in the short form: one of each length and kind

REDUCTIONS = ("allreduce", "reduce", "reduce_scatter", "reduce_scatterv", "scan", "exscan")
IN_PLACE = ("allreduce", "reduce", "scan", "exscan")
_SHAPES: dict[str, list[tuple[int, ...]]] = {
    "reduce_scatter": [(0, 3), (1,), (3,), (7, 2), (4099,)],
    "function": [(0, 3), (1,), (3, 2), (8, 3), (9000,)],
    "alltoall": [(0, 3), (1,), (3,), (7, 2), (1031,)],
}
_ANY_SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (3,), (7, 3), (2, 0, 2), (4099,), (70_001,)]
_ROW_SHAPES: list[tuple[int, ...]] = [(0, 2), (1,), (5,), (6, 3), (2, 0), (3001,)]


@functools.cache
def cases(collective: str, size: int, thorough: bool, largest: int | None = None) -> tuple[Case, ...]:
    """The cases of one collective for groups of that size, in an order that every rank agrees on.

    `thorough`: all algorithms, shapes and ways to pass arrays, and not only dtypes and ops. `largest`: leave out arrays
    of more elements.
    """
    all_of_them = _cases(collective, size, thorough)
    return tuple(case for case in all_of_them if largest is None or math.prod(case.shape) <= largest)


def _cases(collective: str, size: int, thorough: bool) -> Iterator[Case]:
    if collective == "plan":  # has arrays of its own
        for root in sorted({0, size - 1}):
            yield Case(collective, "int64", shape=(), root=root)
        return
    if collective != "same bits":
        for number, dtype in enumerate(DTYPES):
            for op in ops_of(collective, dtype):
                yield Case(collective, dtype.name, op, (5,), root=number)
    if thorough:
        yield from _thorough(collective, size)


def ops_of(collective: str, dtype: np.dtype[Any]) -> list[str]:
    if collective == "function":
        known = dtype not in COMPLEXES if LONG else dtype.name in DTYPES_OF_FUNCTIONS  # complex has no maximum
        return ["sum"] if known else []
    if collective not in REDUCTIONS:
        return ["sum"]
    return [op for op in ops(dtype) if op != "avg" or not collective.endswith("scan")]


def _thorough(collective: str, size: int) -> Iterator[Case]:
    """Every algorithm with every kind of shape, every way of passing arrays, and in the background."""
    names = ["auto"]
    if collective not in ("barrier", "send", "exchange", "function"):
        contract = "allreduce" if collective == "same bits" else collective.removesuffix("v")
        names += [a.name for a in algorithms.algorithms(contract, size, uneven=collective.endswith("v"))]
    if collective == "same bits":
        for number, (name, dtype) in enumerate((n, d) for n in names for d in FLOATS):
            yield Case(collective, dtype.name, "sum", (257,), algorithm=name, seed=number)
        return
    shapes = _ROW_SHAPES if collective.endswith("v") else _SHAPES.get(collective, _ANY_SHAPES)
    for name in names:
        for number, shape in enumerate(shapes):
            yield Case(collective, "int64", shape=shape, root=number, algorithm=name, seed=number)
        yield Case(collective, "float32", shape=(3,), algorithm=name, background=True)
        yield Case(collective, "bfloat16", shape=(9,), root=1, algorithm=name, place="strided")
        for place in ("out", "in") if collective in IN_PLACE else ("out",):
            if collective in (*REDUCTIONS, "allgather", "alltoall"):
                yield Case(collective, "float32", shape=(6,), root=2, algorithm=name, place=place)
                yield Case(collective, "float64", shape=(3001,), algorithm=name, place=place, background=True)
