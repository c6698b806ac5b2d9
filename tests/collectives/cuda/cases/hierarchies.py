"""NCCL inside hosts and host memory between them. Hosts are simulated: ranks say that they are on different ones."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

import collectives
from collectives import PeerLost
from collectives.transports.host import HostIdentity
from tests.collectives.conformance.reference import reduced
from tests.collectives.cuda.by_name import raises
from tests.collectives.cuda.cases.common import case, start
from tests.collectives.cuda.runs_on import RANK, SIZE, Stream, cupy

HOSTS = [int(host) for host in os.environ.get("WORKER_HOSTS", "0").split(",")]
PER_HOST = HOSTS.count(0)


def _on_hosts(**options: Any) -> collectives.Communicator:
    """A communicator whose ranks are on the hosts of the variable WORKER_HOSTS, by rank."""
    here, host = HostIdentity.here, HOSTS[RANK]

    def elsewhere(proof: str = "") -> HostIdentity:
        return replace(here(), host=f"host{host}", boot=f"boot-{host}", netns=host + 1)

    HostIdentity.here = staticmethod(elsewhere)  # type: ignore[method-assign]
    return start(table=os.environ.get("TABLE"), **options)


def _engine(comm: collectives.Communicator) -> str:
    return str(comm.dump()["operations"][-1]["engine"])


def _check(comm: collectives.Communicator, count: int, dtype: Any, op: str, **options: Any) -> None:
    inputs = [(np.arange(count) % 5 + rank + 1).astype(dtype) for rank in range(SIZE)]
    totals = {"sum": np.add, "avg": np.add, "max": np.maximum, "prod": np.multiply}
    total = totals[op].reduce(inputs, dtype=dtype)
    total = (total / SIZE).astype(dtype) if op == "avg" else total
    x = cupy.asarray(inputs[RANK])
    result = comm.allreduce(x, op, **options)
    np.testing.assert_array_equal(result.get(), total, err_msg=f"{count} {dtype} {op}")
    np.testing.assert_array_equal(x.get(), inputs[RANK])
    assert comm.allreduce(x, op, out=x, **options) is x
    np.testing.assert_array_equal(x.get(), total)


@case
def hierarchy() -> None:
    """All sizes, dtypes and ops that both NCCL and host memory reduce; in place, in other streams, and asynchronous."""
    with _on_hosts() as comm:
        assert comm.local_size == PER_HOST
        text = comm.explain("allreduce", 1 << 20)
        assert "on CUDA     hierarchy: asked for" in text and "memory=cuda" in text, text
        for count in (PER_HOST * 1000, PER_HOST * 1000 + 1, 1, 0, 3 << 20):
            _check(comm, count, np.float32, "sum")
            assert _engine(comm) == "hierarchy"
        for dtype in (np.float64, np.int32, np.uint8, np.complex64, ml_dtypes.bfloat16):
            for op in ("sum", "max", "prod", "avg"):
                if op in ("max", "prod") and np.dtype(dtype).kind == "c":
                    continue
                _check(comm, 100, dtype, op)
                assert _engine(comm) == "hierarchy"
        assert comm.memory()["nccl"] > 0
        stream = Stream()
        x = cupy.asarray(np.full(50_000, RANK + 1.0))
        with stream:
            works = [comm.allreduce_async(x) for _ in range(3)]
            for work in works:
                np.testing.assert_array_equal(work.wait().get(), np.full(50_000, SIZE * (SIZE + 1) / 2))
        y = comm.allreduce(x, stream=stream)
        np.testing.assert_array_equal(y.get(), np.full(50_000, SIZE * (SIZE + 1) / 2))
        short = cupy.asarray(np.array([1, 2], np.int16))  # which NCCL does not reduce
        np.testing.assert_array_equal(comm.allreduce(short).get(), [SIZE, 2 * SIZE])
        assert _engine(comm) != "hierarchy"
        with raises(TypeError, "avg"):
            comm.allreduce(cupy.asarray(np.ones(2, bool)), "avg")
        with raises(ValueError, "unknown op"):
            comm.allreduce(x, "sun")


def _numbers(rank: int, shape: Any, dtype: Any) -> Any:
    return (np.arange(np.prod(shape, dtype=int)) % 5 + rank + 1).reshape(shape).astype(dtype)


def _check_collectives(comm: collectives.Communicator, count: int, dtype: Any, roots: Any) -> None:
    """Each collective but allreduce, on arrays of `count` elements, or of as many for each rank."""
    inputs = [_numbers(rank, count, dtype) for rank in range(SIZE)]
    total = np.add.reduce(inputs, dtype=dtype)
    x = cupy.asarray(inputs[RANK])
    for root in roots:
        y = cupy.asarray(inputs[RANK])
        assert comm.broadcast(y, root=root) is y
        np.testing.assert_array_equal(y.get(), inputs[root], err_msg=f"{count} {dtype} from {root}")
        assert _engine(comm) == "hierarchy"
        y = cupy.asarray(inputs[RANK])
        for out in (None, y):
            on_root = comm.reduce(x if out is None else y, root=root, out=out)
            assert _engine(comm) == "hierarchy"
            assert (on_root is None) == (root != RANK)
            if on_root is not None:
                np.testing.assert_array_equal(on_root.get(), total, err_msg=f"{count} {dtype} to {root}")
    np.testing.assert_array_equal(comm.allgather(x).get(), np.stack(inputs))
    assert _engine(comm) == "hierarchy"
    rows = [_numbers(rank, (SIZE, min(count, 300_001)), dtype) for rank in range(SIZE)]
    given = cupy.asarray(rows[RANK])
    np.testing.assert_array_equal(comm.reduce_scatter(given).get()[0], np.add.reduce(rows, dtype=dtype)[RANK])
    assert _engine(comm) == "hierarchy"
    np.testing.assert_array_equal(given.get(), rows[RANK])
    for root in roots:
        gathered = comm.gather(x, root=root)
        assert _engine(comm) == "hierarchy" and (gathered is None) == (root != RANK)
        if gathered is not None:
            np.testing.assert_array_equal(gathered.get(), np.stack(inputs))
        mine = comm.scatter(given if root == RANK else None, root=root)
        assert _engine(comm) == "hierarchy"
        np.testing.assert_array_equal(mine.get(), rows[root][RANK])
    np.testing.assert_array_equal(x.get(), inputs[RANK])


def _check_parts(comm: collectives.Communicator, counts: Any, dtype: Any, roots: Any) -> None:
    """Calls with parts of different lengths: rank r has `counts[r]` rows of two elements."""
    ends = np.cumsum(counts)
    own = slice(ends[RANK] - counts[RANK], ends[RANK])
    parts = [_numbers(rank, (counts[rank], 2), dtype) for rank in range(SIZE)]
    x = cupy.asarray(parts[RANK])
    np.testing.assert_array_equal(comm.allgatherv(x).get(), np.concatenate(parts))
    assert _engine(comm) == "hierarchy"
    rows = [_numbers(rank, (ends[-1], 2), dtype) for rank in range(SIZE)]
    given = cupy.asarray(rows[RANK])
    total = np.add.reduce(rows, dtype=dtype)
    np.testing.assert_array_equal(comm.reduce_scatterv(given, counts).get(), total[own])
    assert _engine(comm) == "hierarchy"
    for root in roots:
        gathered = comm.gatherv(x, root=root)
        assert _engine(comm) == "hierarchy" and (gathered is None) == (root != RANK)
        if gathered is not None:
            np.testing.assert_array_equal(gathered.get(), np.concatenate(parts))
        mine = comm.scatterv(given if root == RANK else None, counts if root == RANK else None, root=root)
        assert _engine(comm) == "hierarchy"
        np.testing.assert_array_equal(mine.get(), rows[root][own])


def _check_averages(comm: collectives.Communicator, dtype: Any) -> None:
    """Of integers whose sums wrap around, which are divided once."""
    info, random = np.iinfo(dtype), np.random.default_rng(3)
    inputs = [random.integers(info.min, info.max, 30 * SIZE, dtype, endpoint=True) for _ in range(SIZE)]
    expected = reduced(inputs, "avg")
    x = cupy.asarray(inputs[RANK])
    counts = [0, 60] * (SIZE // 2)
    end = sum(counts[: RANK + 1])
    np.testing.assert_array_equal(comm.reduce_scatter(x, "avg").get(), np.split(expected, SIZE)[RANK])
    np.testing.assert_array_equal(comm.reduce_scatterv(x, counts, "avg").get(), expected[end - counts[RANK] : end])
    on_root = comm.reduce(x, "avg", root=1)
    assert (on_root is None) == (RANK != 1)
    if on_root is not None:
        np.testing.assert_array_equal(on_root.get(), expected)
    assert comm.allreduce(x, "avg", out=x) is x
    np.testing.assert_array_equal(x.get(), expected)
    assert _engine(comm) == "hierarchy"


@case
def hierarchy_of_collectives() -> None:
    """All but allreduce; lengths that ranks of a host do not divide, parts of different lengths, and long arrays."""
    with _on_hosts() as comm:
        for name in ("broadcast", "reduce", "allgather", "reduce_scatter", "gather", "scatter"):
            text = comm.explain(name, 1 << 20)
            assert "on CUDA     hierarchy: " in text, text
        assert "on CUDA     hierarchy" not in comm.explain("alltoall", 1 << 20)
        for count in (1000 * PER_HOST, 1000 * PER_HOST + 1, 1, 0):
            _check_collectives(comm, count, np.float32, range(SIZE))
        _check_collectives(comm, 2_000_003, np.int32, (SIZE - 1,))
        for counts in ([1 + 100 * rank for rank in range(SIZE)], [5, 0] * (SIZE // 2), [0] * SIZE):
            _check_parts(comm, counts, np.float32, (0, SIZE - 1))
        _check_parts(comm, [80_000 * rank for rank in range(SIZE)], np.int32, (1,))
        _check_collectives(comm, 100, ml_dtypes.bfloat16, (1,))
        for dtype in (np.int8, np.uint8, np.int32, np.int64, np.uint64):
            _check_averages(comm, dtype)
        short = cupy.asarray(np.array([RANK, 2], np.int16))  # which NCCL moves, but does not reduce
        np.testing.assert_array_equal(comm.allgather(short).get()[:, 0], np.arange(SIZE))
        assert _engine(comm) == "hierarchy"
        assert comm.broadcast(short, root=1) is short
        np.testing.assert_array_equal(short.get(), [1, 2])
        assert _engine(comm) == "hierarchy"
        x, stream = cupy.asarray(np.full((SIZE, 5), RANK, np.float64)), Stream()
        works = [comm.reduce_scatter_async(x, "max"), comm.allgather_async(x), comm.reduce_async(x, "avg", root=1)]
        np.testing.assert_array_equal(works[0].wait().get(), np.full((1, 5), SIZE - 1.0))
        np.testing.assert_array_equal(works[1].wait().get()[:, 0, 0], np.arange(SIZE))
        mean = works[2].wait()
        assert (mean is None) == (RANK != 1)
        if mean is not None:
            np.testing.assert_array_equal(mean.get(), np.full((SIZE, 5), (SIZE - 1) / 2))
        y = comm.allgather(x, stream=stream)
        with stream:
            np.testing.assert_array_equal(y.get()[:, 0, 0], np.arange(SIZE))
        with comm.group():  # whose calls all start together: without a hierarchy
            whole, total = cupy.empty((SIZE, SIZE, 5), np.float64), cupy.empty((SIZE, 5), np.float64)
            comm.allgather(x, out=whole)
            comm.allreduce(x, out=total)
        np.testing.assert_array_equal(whole.get()[:, 0, 0], np.arange(SIZE))
        np.testing.assert_array_equal(total.get(), np.full((SIZE, 5), SIZE * (SIZE - 1) / 2))
        assert _engine(comm) != "hierarchy"
        with raises(ValueError, "among"):
            comm.reduce_scatter(cupy.asarray(np.zeros((SIZE + 1, 2))))
        with raises(ValueError, "root"):
            comm.broadcast(x, root=SIZE)


@case
def hierarchy_by_default() -> None:
    """Before the ranks have tried to make NCCL's communicator, `explain` names NCCL."""
    with _on_hosts() as comm:
        assert "on CUDA     nccl" in comm.explain("broadcast", 1 << 20)
        for first in ("scatter", "gatherv", "reduce_scatterv"):  # the call in which ranks try to make it
            with comm.dup() as twin:
                x = cupy.asarray(_numbers(RANK, (SIZE, 5), np.float32))
                if first == "scatter":
                    result = twin.scatter(x if RANK == 1 else None, root=1)
                    np.testing.assert_array_equal(result.get(), _numbers(1, (SIZE, 5), np.float32)[RANK])
                elif first == "gatherv":
                    result = twin.gatherv(cupy.asarray(np.ones((RANK + 1, 5), np.float32)), root=0)
                    assert RANK or result.shape == (SIZE * (SIZE + 1) // 2, 5)
                else:
                    assert twin.reduce_scatterv(x, [SIZE, *[0] * (SIZE - 1)]).shape == (0 if RANK else SIZE, 5)
                assert _engine(twin) == "hierarchy"
        _check_collectives(comm, 1001, np.float32, (SIZE - 1,))
        text = comm.explain("broadcast", 1 << 20)
        assert "on CUDA     hierarchy: NCCL inside each host" in text and "different values of" in text, text


@case
def hierarchy_by_name() -> None:
    """Without such a row NCCL runs all; a call may name the hierarchy."""
    with _on_hosts() as comm:
        assert "on CUDA     nccl" in comm.explain("allreduce", 1 << 20)
        _check(comm, 1000, np.float32, "sum")
        assert _engine(comm) == "nccl"
        _check(comm, 1000, np.float32, "sum", algorithm="hierarchy")
        assert _engine(comm) == "hierarchy"
        with raises(ValueError, "cannot run this call", "no int16"):
            comm.allreduce(cupy.asarray(np.ones(2, np.int16)), algorithm="hierarchy")
        x = cupy.asarray(np.full((SIZE, 2), RANK))
        np.testing.assert_array_equal(comm.allgather(x, algorithm="hierarchy").get()[:, 0, 0], np.arange(SIZE))
        assert _engine(comm) == "hierarchy"
        mine = comm.scatter(x if RANK == 2 else None, root=2, algorithm="hierarchy")
        np.testing.assert_array_equal(mine.get(), [2, 2])
        assert _engine(comm) == "hierarchy"
        assert comm.allgatherv(x, algorithm="hierarchy").shape == (SIZE * SIZE, 2)
        assert _engine(comm) == "hierarchy"
        with raises(ValueError, "cannot run this call", "it does not run alltoall"):
            comm.alltoall(x, algorithm="hierarchy")


@case
def no_hierarchy() -> None:
    """Where it cannot run, calls go another way, and all ranks say why."""
    with _on_hosts() as comm:
        x = cupy.asarray(np.ones(1000))
        np.testing.assert_array_equal(comm.allreduce(x).get(), np.full(1000, float(SIZE)))
        assert _engine(comm) != "hierarchy"
        text = comm.explain("allreduce", 1 << 20)
        assert os.environ["WHY"] in text, text
        with raises(ValueError, "cannot run this call", os.environ["WHY"]):
            comm.allreduce(x, algorithm="hierarchy")
        mine = comm.scatter(cupy.asarray(np.eye(SIZE)) if RANK == 0 else None)
        assert (mine if isinstance(mine, np.ndarray) else mine.get())[RANK] == 1
        assert _engine(comm) != "hierarchy"


@case
def hierarchy_of_a_killed_rank() -> None:
    comm = _on_hosts(timeout=30.0)
    x = cupy.asarray(np.ones(1000))
    comm.allreduce(x)
    if RANK == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    with raises(PeerLost, "rank 1"):
        comm.allreduce(x)
        comm.allreduce(x)
    assert time.monotonic() - begun < 3.0
    with raises(PeerLost, "rank 1"):
        comm.allreduce(x)
    cupy.cuda.get_current_stream().synchronize()
    comm.close()
