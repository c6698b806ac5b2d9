"""The cases of ranks that share a device, on the stand-ins or on a device; the names of cases are the arguments."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

if "ENGINE" in os.environ:  # another build of the extension: tests/gpu/test_waits.py
    from importlib.util import module_from_spec, spec_from_file_location

    _NAME = "collectives.native._engine"
    _spec = spec_from_file_location(_NAME, os.environ["ENGINE"])
    assert _spec is not None and _spec.loader is not None
    sys.modules[_NAME] = module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_NAME])

import collectives
from collectives import Aborted, DesyncError, OpTimeout, PeerLost, TransportUnavailable
from collectives.arrays.dtypes import dtype_names
from collectives.calls.moves import Deadline
from collectives.native import _engine
from tests.collectives.cuda.by_name import Cases, raises

ON_STAND_IN = "STAND_IN_MODULES" in os.environ
if ON_STAND_IN:
    sys.path.insert(0, os.environ["STAND_IN_MODULES"])
import cupy  # noqa: E402
from cupy.cuda import Device, Stream  # noqa: E402

if ON_STAND_IN:
    from cupy.cuda import Gate, driver

RANK = int(os.environ["COLLECTIVES_RANK"])
SIZE = int(os.environ["COLLECTIVES_SIZE"])
REPLAYS = int(os.environ.get("REPLAYS", "100"))
SOON = 2.0  # seconds in which survivors name a rank that was killed
case = Cases()


def start(**options: Any) -> collectives.Communicator:
    Device(int(os.environ.get("WORKER_DEVICE", "0"))).use()
    return collectives.init(timeout=options.pop("timeout", 30.0), **options)


def last_engine(comm: collectives.Communicator) -> str:
    return str(comm.dump()["operations"][-1]["engine"])


def array(values: Any) -> Any:
    """An array on the device. CuPy itself has no bfloat16 in all its versions."""
    return cupy.asarray(values)


def inputs_of(dtype: Any, count: int) -> list[Any]:
    """The same on every rank: of each rank, numbers whose sum in another order may differ."""
    random = np.random.default_rng(7)
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return [random.integers(0, 2, count).astype(bool) for _ in range(SIZE)]
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return [random.integers(info.min, info.max, count, dtype=kind, endpoint=True) for _ in range(SIZE)]
    if kind.kind == "c":
        return [(random.normal(size=count) + 1j * random.normal(size=count)).astype(kind) for _ in range(SIZE)]
    return [(random.normal(size=count) * 100).astype(kind) for _ in range(SIZE)]


def expected(inputs: list[Any], op: str) -> Any:
    """What the library's kernels for the CPU compute, in the order of ranks."""
    result = np.empty_like(inputs[0])
    code = _engine.DTYPES["bool" if result.dtype == bool else result.dtype.name]
    _engine.reduce(result, inputs, code, _engine.OPS[op], 1.0 / SIZE)
    return result


def xor(inputs: list[Any]) -> Any:
    result = inputs[0].copy()
    for one in inputs[1:]:
        result ^= one
    return result


@case
def results() -> None:
    """All dtypes and ops give the bits that the CPU's kernels give, in the order of ranks; odd sizes, too."""
    every = tuple(dtype_names().values())
    names = ("float16", "float32", "int8", "bool", "complex64") if "SHORT" in os.environ else every
    dtypes = [np.dtype(name) for name in names if name != "bfloat16"]
    if ON_STAND_IN:
        dtypes.append(np.dtype(ml_dtypes.bfloat16))
    with start(transport="leader") as comm:
        for dtype in dtypes:
            for op, code in _engine.OPS.items():
                if not _engine.supports(_engine.DTYPES[dtype.name], code):
                    continue
                inputs = inputs_of(dtype, 67)
                if dtype.kind == "f":
                    inputs[0][:3] = np.nan, np.inf, -0.0
                    inputs[-1][:3] = 1.0, -np.inf, 0.0
                found = comm.allreduce(array(inputs[RANK]), op).get()
                assert found.tobytes() == expected(inputs, op).tobytes(), (dtype, op, found, expected(inputs, op))
                assert last_engine(comm) == "leader", (dtype, op)


@case
def collectives_of_all_kinds() -> None:
    """Each collective, out of place and in place, aligned and not, large and empty."""
    with start(transport="leader") as comm:
        for count in (0, 1, 3, 16, 1000, 40_000):
            inputs = inputs_of(np.float32, count * SIZE)
            x = array(inputs[RANK])
            total = expected(inputs, "sum")
            np.testing.assert_array_equal(comm.allreduce(x).get(), total)
            np.testing.assert_array_equal(comm.reduce_scatter(x).get(), np.split(total, SIZE)[RANK])
            np.testing.assert_array_equal(comm.allgather(x).get(), np.stack(inputs))
            parts = [np.split(one, SIZE)[RANK] for one in inputs]
            np.testing.assert_array_equal(comm.alltoall(x).get(), np.concatenate(parts))
            for root in range(SIZE):
                reduced, gathered = comm.reduce(x, "max", root=root), comm.gather(x, root=root)
                assert (reduced is None) == (gathered is None) == (root != RANK)
                if reduced is not None:
                    np.testing.assert_array_equal(reduced.get(), np.max(inputs, axis=0))
                    np.testing.assert_array_equal(gathered.get(), np.stack(inputs))
            np.testing.assert_array_equal(x.get(), inputs[RANK])
            assert comm.allreduce(x, out=x) is x
            np.testing.assert_array_equal(x.get(), total)
            y = array(inputs[RANK])
            comm.broadcast(y, root=SIZE - 1)
            np.testing.assert_array_equal(y.get(), inputs[SIZE - 1])
        ours = {o["engine"] for o in comm.dump()["operations"] if o["collective"] in ("alltoall", "allreduce")}
        assert ours == {"leader"}, ours
        bytes_of_odd_length = array(np.full(13, RANK, np.int8))
        gathered = comm.allgather(bytes_of_odd_length).get()
        np.testing.assert_array_equal(gathered, np.repeat(np.arange(SIZE, dtype=np.int8), 13).reshape(SIZE, 13))


@case
def memory_of_all_kinds() -> None:
    """Arrays that are exported by a handle, by a descriptor, or staged; arrays cut out of a larger allocation."""
    with start(transport="leader") as comm:
        for kinds in (("descriptor", "handle"), ("none", "handle"), ("none", "none"), ("descriptor", "none")):
            driver.kind = kinds[RANK % 2]
            for _ in range(3):
                x = array(np.arange(1000.0) + RANK)
                y = comm.allreduce(x)
                np.testing.assert_array_equal(y.get(), SIZE * np.arange(1000.0) + SIZE * (SIZE - 1) // 2)
                np.testing.assert_array_equal(comm.allgather(x).get()[SIZE - 1], np.arange(1000.0) + SIZE - 1)
        driver.kind = "handle"
        whole = array(np.zeros(3000, np.float32))
        first, second = whole.part(0, 1000), whole.part(1000 + RANK, 1000)
        first.set(np.full(1000, 1.0, np.float32))
        comm.allreduce(first, out=second)
        np.testing.assert_array_equal(second.get(), np.full(1000, float(SIZE), np.float32))
        assert whole.get().sum() == 1000 * (SIZE + 1)


@case
def memory_used_again() -> None:
    """Memory that was freed and allocated again at the same place is not taken for the old one."""
    with start(transport="leader") as comm:
        for i in range(20):
            x = array(np.full(2000, float(i + RANK)))
            np.testing.assert_array_equal(
                comm.allreduce(x).get(), np.full(2000, SIZE * float(i) + SIZE * (SIZE - 1) // 2)
            )
            comm.barrier()
            x.free()


@case
def order() -> None:
    """The call waits for nothing on the host; a held stream holds what is in it; many calls at once."""
    with start(transport="leader") as comm:
        held, gate = Stream(), Gate()
        x, late = array(np.ones(4, np.float32)), array(np.zeros(4, np.float32))
        comm.allreduce(x)
        comm.synchronize()
        if RANK == SIZE - 1:
            gate.hold(held)
        work = comm.allreduce_async(x, out=late, stream=held)
        time.sleep(0.2)
        if work.done():  # then closing would wait for the held stream
            print("AssertionError: the call was complete before all ranks had come to it", flush=True)
            os._exit(1)
        with raises(OpTimeout, "still running"):
            work.wait(0.05)
        with raises(OpTimeout, "synchronize waited", "1 of the operations"):
            comm.synchronize(timeout=0.05)
        comm.barrier()
        gate.open()
        work.wait()
        np.testing.assert_array_equal(late.get(), np.full(4, SIZE * 1.0))
        works = [comm.allreduce_async(array(np.full(4, i, np.float32))) for i in range(300)]
        for i, one in enumerate(works):
            np.testing.assert_array_equal(one.wait().get(), np.full(4, SIZE * 1.0 * i))
        # The last rank is late again and again: an earlier result would be read if a wait were missing.
        for i in range(30):
            if RANK == SIZE - 1:
                time.sleep(0.002)
            x.set(np.full(4, i + RANK, np.float32))
            comm.allreduce(x, out=late)
            np.testing.assert_array_equal(late.get(), np.full(4, SIZE * i + SIZE * (SIZE - 1) // 2))


@case
def delayed() -> None:
    """The last rank is late, on the host and, on a device, in its stream, too."""
    with start(transport="leader") as comm:
        x, late = array(np.zeros(4, np.float32)), array(np.zeros(4, np.float32))
        busy = cupy.empty((64 << 20,), np.float32)
        comm.allreduce(x, out=late)
        for i in range(30):
            if RANK == SIZE - 1:
                time.sleep(0.002)
                for _ in range(0 if ON_STAND_IN else 50):  # some milliseconds
                    busy.fill(i)
            x.fill(i + RANK)
            comm.allreduce(x, out=late)
            np.testing.assert_array_equal(late.get(), np.full(4, SIZE * i + SIZE * (SIZE - 1) // 2))


@case
def own_memory() -> None:
    """Arrays of `comm.empty` on the device, alone and as arrays of another library; their memory is used again."""
    with start(transport="leader") as comm:
        stream = Stream()
        addresses = set()
        for i in range(5):
            x = comm.empty(1000, where="cuda")
            whole = comm.empty((SIZE, 500), "int64", where="cuda:0")
            seen = cupy.asarray(x)
            seen.set(np.full(1000, i + RANK, np.float32))
            y = comm.allreduce(x, stream=stream)
            assert type(y) is type(x) and y.shape == (1000,)
            comm.synchronize(stream)
            total = SIZE * i + SIZE * (SIZE - 1) // 2
            np.testing.assert_array_equal(cupy.asarray(y).get(), np.full(1000, total, np.float32))
            cupy.asarray(whole).fill(RANK)
            part = comm.reduce_scatter(whole)
            comm.synchronize()
            np.testing.assert_array_equal(cupy.asarray(part).get(), np.full((1, 500), SIZE * (SIZE - 1) // 2))
            addresses.add(x.__cuda_array_interface__["data"][0])
            del x, y, seen, whole, part
        assert len(addresses) < 5, addresses
        memory = comm.memory()
        assert 0 < memory["leader"] < memory["device_heap"], memory
        for where in ("gpu", "cuda:x", ""):
            with raises(ValueError, "where is"):
                comm.empty(3, where=where)
        with raises(ValueError, "there is no device 77"):
            comm.empty(3, where="cuda:77")


@case
def staged() -> None:
    """Where no rank can lead and there is no NCCL, large arrays pass through pinned memory in slices."""
    with start() as comm:
        for count in (4_000_001, 1_100_000, 10):
            inputs = inputs_of(np.float32, count)
            x = array(inputs[RANK])
            y = comm.allreduce(x)
            assert last_engine(comm) not in ("leader", "nccl")
            np.testing.assert_array_equal(y.get(), expected(inputs, "sum"))
            np.testing.assert_array_equal(x.get(), inputs[RANK])
            works = [comm.allreduce_async(x, "max") for _ in range(2)]
            for work in works:
                np.testing.assert_array_equal(work.wait().get(), expected(inputs, "max"))
            del work, works
            assert comm.allreduce(x, out=x) is x
            np.testing.assert_array_equal(x.get(), y.get())
        assert os.environ["WHY"] in comm.explain("allreduce", 64), comm.explain("allreduce", 64)
    assert driver.registered() == 0, driver.registered()


@case
def staged_calls() -> None:
    """Other collectives than allreduce in slices: even and uneven parts, large enough for slots to be used again."""
    from collectives.calls import slices, staged

    setattr(staged, "_SLOTS", 3)  # noqa: B010
    setattr(slices, "_LARGEST", 1 << 20)  # noqa: B010
    used: list[int] = []
    staging = staged.StagedCalls.staging

    def noted(self: Any, nbytes: int, *more: Any) -> Any:
        used.append(nbytes)
        return staging(self, nbytes, *more)

    setattr(staged.StagedCalls, "staging", noted)  # noqa: B010
    with start() as comm:
        comm.allreduce(array(np.ones(4)))  # here the ranks compare their devices
        for count in (2_500_003, 1_300_001):
            inputs = inputs_of(np.float32, count)
            x = array(inputs[RANK])
            for root in (0, SIZE - 1):
                total = comm.reduce(x, "max", root=root)
                assert (total is None) == (root != RANK)
                if total is not None:
                    np.testing.assert_array_equal(total.get(), np.max(inputs, axis=0))
                y = array(inputs[RANK])
                assert comm.broadcast(y, root=root) is y
                np.testing.assert_array_equal(y.get(), inputs[root])
                gathered = comm.gather(x, root=root)
                assert (gathered is None) == (root != RANK)
                if gathered is not None:
                    np.testing.assert_array_equal(gathered.get(), np.stack(inputs))
            out = array(np.zeros((SIZE, count), np.float32))
            assert comm.allgather(x, out=out) is out
            np.testing.assert_array_equal(out.get(), np.stack(inputs))
            np.testing.assert_array_equal(comm.scan(x, "max").get(), np.max(inputs[: RANK + 1], axis=0))
            before = np.max(inputs[:RANK], axis=0) if RANK else np.full(count, -np.inf, np.float32)
            np.testing.assert_array_equal(comm.exscan(x, "max").get(), before)
            assert comm.allreduce(x, "min", out=x) is x
            np.testing.assert_array_equal(x.get(), np.min(inputs, axis=0))
        inputs = [one.reshape(SIZE, -1) for one in inputs_of(np.int64, SIZE * 400_003)]
        x = array(inputs[RANK])
        np.testing.assert_array_equal(comm.reduce_scatter(x, "bxor").get()[0], xor(inputs)[RANK])
        np.testing.assert_array_equal(comm.alltoall(x).get(), np.stack([one[RANK] for one in inputs]))
        parts = [r * 300_000 + 1 for r in range(SIZE)]
        mine = [np.arange(2 * n, dtype=np.float64).reshape(n, 2) + r for r, n in enumerate(parts)]
        whole = np.concatenate(mine)
        np.testing.assert_array_equal(comm.allgatherv(array(mine[RANK])).get(), whole)
        gathered = comm.gatherv(array(mine[RANK]), root=SIZE - 1)
        assert (gathered is None) == (SIZE - 1 != RANK)
        if gathered is not None:
            np.testing.assert_array_equal(gathered.get(), whole)
        spread = comm.reduce_scatterv(array(whole * (RANK + 1)), parts, "max")
        np.testing.assert_array_equal(spread.get(), SIZE * mine[RANK])
        assert 0 < max(used) <= 3 * (2 << 20) + 4096, used  # input and output of three slices of 1 MiB
        work = comm.allgather_async(array(np.full(1_200_000, RANK, np.float32)))
        other = comm.broadcast_async(array(np.full(1_500_000, RANK, np.float32)), root=1)
        np.testing.assert_array_equal(other.wait().get()[::1000], 1)
        np.testing.assert_array_equal(work.wait().get()[:, ::1000].mean(axis=1), np.arange(SIZE))
        del work, other
        with raises(ValueError, "first axis"):
            comm.reduce_scatter(array(np.zeros((SIZE + 1, 1 << 20), np.float32)))
        with raises(ValueError, "root"):
            comm.broadcast(array(np.zeros(2 << 20, np.float32)), root=SIZE)
        freed = array(np.zeros(2 << 20, np.float32))
        freed.free()
        with raises(ValueError, "x (address 0x", "not memory of a CUDA device"):
            comm.broadcast(freed, root=0)
        stream = Stream()
        stream.begin_capture()
        with raises(ValueError, "captured"), stream:
            comm.allgather(out)
        stream.end_capture()  # the capture itself is not lost
    assert driver.registered() == 0, driver.registered()


def _fail_in_slice(number: int, error: BaseException | None) -> None:
    """On rank 1, the copy to the host of this slice is not in time, or a signal arrives meanwhile."""
    from collectives.calls import staged

    start_slice = staged._Run._start

    def failing(self: Any) -> None:
        if RANK == 1 and self.part_way.begun == number:
            setattr(staged._Run, "_start", start_slice)  # noqa: B010  # only once
            if error is not None:
                raise error
            self._deadline = Deadline(0.0)
            self._fetched = deque([NeverThere()])
        start_slice(self)

    setattr(staged._Run, "_start", failing)  # noqa: B010


class NeverThere:
    """A copy that a stream holds up."""

    def wait(self, timeout: float) -> bool:
        assert timeout == 0.0
        return False


@case
def staged_in_part() -> None:
    """A call that fails between its slices breaks the communicator: no slice is taken for one of another call."""
    _check_broken(OpTimeout, None, OpTimeout)


@case
def staged_interrupted() -> None:
    _check_broken(KeyboardInterrupt, KeyboardInterrupt(), Aborted if RANK == 1 else PeerLost)


def _check_broken(kind: type[BaseException], error: BaseException | None, shared: type[Exception]) -> None:
    with start() as comm:
        x = array(np.ones(4 << 20, np.float32))  # 16 slices
        comm.allreduce(array(np.ones(4)))
        np.testing.assert_array_equal(comm.allreduce(x).get()[::1000], SIZE)
        _fail_in_slice(3, error)
        begun = time.monotonic()
        if RANK == 1:
            with raises(kind):
                comm.allreduce(x)
        else:
            with raises(shared, "ended on rank 1 after 3 of 16 slices"):
                comm.allreduce(x)
        assert time.monotonic() - begun < 10.0
        for again in (x, np.ones(3)):
            with raises(shared, "ended on rank 1 after 3 of 16 slices"):
                comm.allreduce(again)


@case
def staged_again() -> None:
    """Memory is pinned once for calls that follow each other, whether blocking or not."""
    from collectives.calls import staged as module

    staged: Any = module
    with start() as comm:
        comm.allreduce(array(np.ones(4)))
        x = array(np.full(4 << 20, RANK, np.float32))
        comm.allreduce(x)
        pinned: list[int] = []
        new = staged.pinned

        def noted(memory: Any, nbytes: int, device: int, rank: int) -> Any:
            pinned.append(nbytes)
            return new(memory, nbytes, device, rank)

        staged.pinned = noted
        for _ in range(3):
            np.testing.assert_array_equal(comm.allreduce_async(x).wait().get()[::1000], SIZE * (SIZE - 1) / 2)
            np.testing.assert_array_equal(comm.allreduce(x, "max").get()[::1000], SIZE - 1)
        assert not pinned, pinned
        for _ in range(2):
            works = [comm.allreduce_async(x) for _ in range(3)]
            for work in works:
                np.testing.assert_array_equal(work.wait().get()[::1000], SIZE * (SIZE - 1) / 2)
        assert len(pinned) == 2, pinned
        del work, works
    assert driver.registered() == 0, driver.registered()


@case
def graphs() -> None:
    """Captured calls are replayed with other inputs, one rank delayed, beside other calls."""
    with start(transport="leader") as comm:
        x, y, z = (array(np.zeros(500, np.float32)) for _ in range(3))
        stream = Stream()
        with stream:
            comm.allreduce(x, out=y)
            stream.begin_capture()
            comm.allreduce(x, out=y)
            comm.allreduce(y, "max", out=z)
            graph = stream.end_capture()
            for i in range(REPLAYS):
                if RANK == SIZE - 1 and i % 10 == 0:
                    time.sleep(0.003)
                x.set(np.full(500, i + RANK, np.float32))
                graph.launch(stream)
                total = np.full(500, SIZE * i + SIZE * (SIZE - 1) // 2, np.float32)
                np.testing.assert_array_equal(z.get(), total)
                if i % 25 == 0:
                    np.testing.assert_array_equal(comm.allreduce(y).get(), SIZE * total)


@case
def captured_first() -> None:
    """A first call in a captured stream is refused on all ranks, and nothing is lost."""
    with start(transport="leader") as comm:
        x, stream = array(np.ones(4)), Stream()
        if RANK == 1:
            stream.begin_capture()
            with raises(ValueError, "captured"):
                comm.allreduce(x, stream=stream)
            stream.end_capture()
        else:
            with raises(Aborted, "rank 1", "captured"):
                comm.allreduce(x, stream=stream)
        with stream:
            np.testing.assert_array_equal(comm.allreduce(x).get(), np.full(4, SIZE * 1.0))


@case
def prepared() -> None:
    """After `prepare`, even a first call may be captured, or be in a `group()` block."""
    with start() as comm:
        with raises(ValueError, "comm.prepare()"), comm.group():
            comm.allreduce(array(np.ones(4)))
        comm.prepare()
        with comm.group():
            total = comm.allreduce(array(np.ones(4)))
        np.testing.assert_array_equal(total.get(), np.full(4, SIZE * 1.0))
        x, y, stream = array(np.zeros(500, np.float32)), array(np.zeros(500, np.float32)), Stream()
        with stream:
            stream.begin_capture()
            comm.allreduce(x, out=y)
            graph = stream.end_capture()
            assert last_engine(comm) == "leader"
            for i in range(3):
                x.set(np.full(500, i + RANK, np.float32))
                graph.launch(stream)
                np.testing.assert_array_equal(y.get(), np.full(500, SIZE * i + SIZE * (SIZE - 1) // 2, np.float32))


@case
def compiled() -> None:
    """`prepare` compiles the kernels of its dtype and op, and those that only move."""
    comm = start(timeout=30.0)
    comm.prepare("allreduce", dtype="int32", op="max")
    os.environ["STAND_IN_NO_COMPILATION"] = "1"
    x = array(np.full(4, RANK, np.int32))
    np.testing.assert_array_equal(comm.allreduce(x, "max").get(), np.full(4, SIZE - 1))
    np.testing.assert_array_equal(comm.allgather(x).get()[:, 0], np.arange(SIZE))
    with raises(ValueError, "unknown op 'summ'"):
        comm.prepare(op="summ")
    with raises(Aborted if RANK == 0 else (Aborted, PeerLost), "compile" if RANK == 0 else "rank 0"):
        comm.allreduce(x, "min")
        comm.synchronize()
        comm.barrier()
    comm.close()


@case
def prepared_beside() -> None:
    """What a leader does not run, NCCL is connected for, if ranks that share a device can use NCCL."""
    with start() as comm:
        comm.prepare("allreduce", "scatter", "send", "recv")
        by_nccl = os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
        assert (comm.memory()["nccl"] > 0) == by_nccl, comm.memory()
        x = array(np.arange(SIZE * 3.0).reshape(SIZE, 3)) if RANK == 0 else None
        row = comm.scatter(x)
        assert isinstance(row, np.ndarray) == (RANK > 0 and not by_nccl)  # the host path knows no library of the root
        np.testing.assert_array_equal(row if isinstance(row, np.ndarray) else row.get(), np.arange(3.0) + 3 * RANK)
        assert (last_engine(comm) == "nccl") == by_nccl, last_engine(comm)
        comm.allreduce(array(np.ones(3)))
        assert last_engine(comm) == "leader"
        got = array(np.zeros(3))
        comm.sendrecv(array(np.full(3, float(RANK))), (RANK + 1) % SIZE, got, (RANK - 1) % SIZE)
        np.testing.assert_array_equal(got.get(), np.full(3, float((RANK - 1) % SIZE)))
        assert (last_engine(comm) == "nccl") == by_nccl, last_engine(comm)


@case
def chosen() -> None:
    """Ranks that share a device are led although NCCL is there; `explain` says so, and what is not led."""
    with start() as comm:
        x = array(np.ones(4))
        np.testing.assert_array_equal(comm.allreduce(x).get(), np.full(4, SIZE * 1.0))
        assert last_engine(comm) == "leader"
        text = comm.explain("allreduce", 1024)
        assert "on CUDA     leader: one rank's kernel" in text and "device=shared" in text, text
        assert ", on device 0" in text and "MPS         no control pipe" in text, text
        text = comm.explain("scan", 1024)
        assert "on CUDA     staging" in text and "not         leader: it does not run scan" in text, text
        np.testing.assert_array_equal(comm.allreduce(x, algorithm="ring").get(), np.full(4, SIZE * 1.0))
        assert last_engine(comm) != "leader"
        np.testing.assert_array_equal(comm.scan(x).get(), np.full(4, RANK + 1.0))
        plan = comm.allreduce_plan(x, out=x)
        assert plan() is x
        np.testing.assert_array_equal(x.get(), np.full(4, SIZE * 1.0))
        with comm.group():
            total = comm.allreduce(x)
            work = comm.allreduce_async(x, "max")
        np.testing.assert_array_equal(total.get(), np.full(4, SIZE * SIZE * 1.0))
        np.testing.assert_array_equal(work.wait().get(), np.full(4, SIZE * 1.0))
        with raises(TypeError, "avg"):
            comm.allreduce(array(np.ones(3, np.int32)), "avg")


@case
def own_devices() -> None:
    """Ranks with devices of their own use NCCL, or a leader if that is asked for and devices reach each other."""
    Device(RANK).use()
    with collectives.init(timeout=30.0) as comm:
        x = array(np.ones(4))
        np.testing.assert_array_equal(comm.allreduce(x).get(), np.full(4, SIZE * 1.0))
        assert last_engine(comm) == "nccl"
        if os.environ.get("STAND_IN_PEERS") == "0":
            with raises(ValueError, "cannot be reached"):
                comm.allreduce(x, algorithm="leader")
            return
        np.testing.assert_array_equal(comm.allreduce(x, algorithm="leader").get(), np.full(4, SIZE * 1.0))
        assert last_engine(comm) == "leader"


@case
def groups() -> None:
    """Communicators from others have an engine each, and leave no registered memory."""
    with start() as comm:
        x = array(np.full(4, RANK + 1.0))
        comm.allreduce(x)
        comm.synchronize()
        before = driver.registered()
        for _ in range(4):
            with comm.dup() as other:
                np.testing.assert_array_equal(other.allreduce(x).get(), np.full(4, SIZE * (SIZE + 1) / 2))
                assert last_engine(other) == "leader"
        assert driver.registered() == before, (driver.registered(), before)
        pair = comm.split(0, key=-RANK)
        assert pair is not None
        y = array(np.full(2, float(pair.rank)))
        pair.broadcast(y, 0)
        np.testing.assert_array_equal(y.get(), [0.0, 0.0])
        pair.close()
    assert driver.registered() == 0, driver.registered()
    print(f"descriptors: {len(os.listdir('/proc/self/fd'))}")


@case
def bad_input() -> None:
    """Each is refused with a clear error on the rank that made it, and the communicator goes on."""
    with start(transport="leader") as comm:
        good = array(np.ones(4, np.float32))
        comm.allreduce(good)
        freed = array(np.ones(4, np.float32))
        freed.free()
        with raises(ValueError, "x (address 0x", "not memory of a CUDA device"):
            comm.allreduce(freed, out=good)
        with Device(1):
            other, foreign = array(np.ones(4, np.float32)), Stream()
        with raises(ValueError, "device 1", f"rank {RANK}"):
            comm.allreduce(other)
        with raises(ValueError, "x is on device 0 and out on device 1"):
            comm.allreduce(good, out=other)
        with raises(ValueError, "not one of device"):
            comm.allreduce(good, stream=foreign)
        with raises(ValueError, "host memory"):
            comm.allreduce(good, out=np.ones(4, np.float32))
        with raises(TypeError, "host memory", 'transport="auto"'):
            comm.allreduce(np.ones(4, np.float32))
        with raises(ValueError, "out is read-only"):
            comm.allreduce(good, out=cupy.ndarray((4,), np.float32, writable=False))
        with raises(ValueError, "shape"):
            comm.allreduce(good, out=cupy.empty((5,)))
        with raises(ValueError, "divides the first axis"):
            comm.reduce_scatter(cupy.empty((SIZE + 1,)))
        with raises(TransportUnavailable, "it does not run scan"):
            comm.scan(good)
        with raises(TransportUnavailable, "it does not run scatter"):
            comm.scatter(None if RANK else good)
        np.testing.assert_array_equal(comm.allreduce(good).get(), np.full(4, SIZE * 1.0))


@case
def wrong_on_one_device() -> None:
    """What does not need a second device, or an address that CuPy would not give."""
    with start(transport="leader") as comm:
        good = array(np.ones(4, np.float32))
        comm.allreduce(good)
        with raises(ValueError, "host memory"):
            comm.allreduce(good, out=np.ones(4, np.float32))
        with raises(ValueError, "shape"):
            comm.allreduce(good, out=cupy.empty((5,), np.float32))
        with raises(TypeError, "host memory", 'transport="auto"'):
            comm.allreduce(np.ones(4, np.float32))
        with raises(TransportUnavailable, "it does not run scan"):
            comm.scan(good)
        np.testing.assert_array_equal(comm.allreduce(good).get(), np.full(4, SIZE * 1.0))


@case
def different() -> None:
    """Ranks that make different calls learn it, and no kernel runs."""
    comm = start(timeout=30.0)
    comm.allreduce(array(np.ones(4)))
    begun = time.monotonic()
    with raises(DesyncError, "4 elements", "40000 elements"):
        comm.allreduce(array(np.ones(40000 if RANK else 4)))
        comm.synchronize()
        comm.barrier()
    assert time.monotonic() - begun < 5.0
    comm.close()


@case
def late() -> None:
    """A rank that makes no call is named at the deadline; the stream is free afterwards."""
    comm = start(timeout=1.5)
    x = array(np.ones(4))
    comm.allreduce(x)
    comm.synchronize()
    if RANK == 1:
        time.sleep(4)
        with raises(OpTimeout, "rank 1", "not begun"):
            comm.allreduce(x)
    else:
        work = comm.allreduce_async(x)
        with raises(OpTimeout, "rank 1", "not begun"):
            work.wait()
        cupy.cuda.get_current_stream().synchronize()
        with raises(OpTimeout, "rank 1"):
            comm.allreduce(x)
    comm.close()


@case
def fenced() -> None:
    """A rank that gives up while a kernel writes its output keeps what it writes there itself."""
    comm = start(timeout=60.0)
    count = 4000  # elements, 16 in a tile, each of which takes a while
    x, y = array(np.ones(count, np.float32)), array(np.zeros(count, np.float32))
    comm.allreduce(array(np.ones(4, np.float32)))
    comm.synchronize()
    comm.barrier()
    if RANK == 1:
        work = comm.allreduce_async(x, out=y)
        while not y.peek().any():
            time.sleep(0.001)
        comm.close()
        with raises(Aborted, "closed"):
            work.wait()
        assert not y.peek().all(), "the kernel had ended before"
        y.fill(7.0)
        time.sleep(0.7)
        late_writes = int((y.peek() != 7.0).sum())
        assert late_writes <= 16, f"{late_writes} elements were written later"  # the tile that was under way
    else:
        with raises(PeerLost, "rank 1"):
            comm.allreduce(x, out=y)
            comm.synchronize()
            comm.barrier()
        comm.close()


def _survive(comm: collectives.Communicator, begin: Callable[[], Any], lost: int) -> None:
    """Raise PeerLost within the bar, use the device, and go on alone."""
    begun = time.monotonic()
    with raises(PeerLost, f"rank {lost}"):
        begin()
        comm.synchronize()
    took = time.monotonic() - begun
    print(f"raised after {took:.2f} s")
    assert took < SOON + 1.0, took  # of which the other rank needs up to a second to die
    cupy.cuda.get_current_stream().synchronize()
    comm.close()
    with collectives.init("memory://alone", rank=0, size=1, transport="leader") as new:
        np.testing.assert_array_equal(new.allreduce(array(np.arange(3.0))).get(), [0, 1, 2])


@case
def killed() -> None:
    """The rank KILLED dies in the middle of calls: the leader, or another."""
    lost = int(os.environ["KILLED"])
    comm = start(timeout=60.0)
    x = array(np.ones(4))
    comm.allreduce(x)
    comm.barrier()
    if lost == RANK:
        comm.allreduce_async(x)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    _survive(comm, lambda: [comm.allreduce_async(x) for _ in range(50)], lost)


@case
def killed_in_replay() -> None:
    """The rank KILLED dies while graphs are replayed, of which no rank keeps a record."""
    lost = int(os.environ["KILLED"])
    comm = start(timeout=60.0)
    comm.prepare("allreduce")
    x, y, stream = array(np.ones(4)), array(np.zeros(4)), Stream()
    with stream:
        stream.begin_capture()
        comm.allreduce(x, out=y)
        graph = stream.end_capture()
        graph.launch(stream)
        comm.synchronize(stream)
        np.testing.assert_array_equal(y.get(), np.full(4, SIZE * 1.0))
        comm.barrier()
        if lost == RANK:
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(40):
            graph.launch(stream)
        if "KNOWN" in os.environ:  # the rank is known to be lost before anybody waits for the stream
            with raises(PeerLost, f"rank {lost}"):
                comm.barrier()
        begun = time.monotonic()
        with raises(PeerLost, f"rank {lost}"):
            comm.synchronize(stream)
        assert time.monotonic() - begun < SOON + 1.0
        stream.synchronize()
    del graph
    comm.close()


@case
def waited_for() -> None:
    """`synchronize` of a stream waits for replays in it, and for all else, but not in a capture."""
    with start() as comm:
        comm.prepare("allreduce", dtype="int32", op="max")
        stream, gate = Stream(), Gate()
        gate.hold(stream)
        with raises(OpTimeout):
            comm.synchronize(stream, timeout=0.05)
        gate.open()
        comm.synchronize(stream, timeout=10)
        stream.begin_capture()
        with raises(ValueError, f"rank {RANK}: ", "captured"):
            comm.synchronize(stream)
        stream.end_capture()


@case
def kept() -> None:
    """What a call uses lives until its stream has passed the call, and not longer."""
    with start() as comm:
        comm.allreduce(array(np.ones(4)))
        stream, gate = Stream(), Gate()
        gate.hold(stream)
        x, y = array(np.ones(1000)), array(np.zeros(1000))
        alive = [weakref.ref(one) for one in (x, y)]
        comm.allreduce(x, out=y, stream=stream)
        first = comm.empty(1000, where="cuda")
        address = first.__cuda_array_interface__["data"][0]
        comm.allreduce(first, stream=stream)
        del x, y, first
        gc.collect()
        assert all(one() is not None for one in alive)
        others = [comm.empty(1000, where="cuda") for _ in range(3)]
        assert address not in [one.__cuda_array_interface__["data"][0] for one in others]
        gate.open()
        comm.synchronize(stream)
        gc.collect()
        assert all(one() is None for one in alive)
        # In the stream of the arrays' library, which orders their memory, nothing is kept.
        x = array(np.ones(1000))
        alive = [weakref.ref(x)]
        comm.allreduce(x)
        del x
        gc.collect()
        assert alive[0]() is None


@case
def host_refused() -> None:
    """Where only one engine may run, arrays in host memory are refused in every call."""
    with start(transport=os.environ["ONLY"]) as comm:
        good, host = array(np.ones(SIZE)), np.ones(SIZE)
        comm.allreduce(good)
        for call in (
            lambda: comm.allreduce(host),
            lambda: comm.scan(host),
            lambda: comm.exscan(host),
            lambda: comm.allreduce_many([host, host]),
            lambda: comm.allgatherv(host),
            lambda: comm.reduce_scatterv(host, [1] * SIZE),
            lambda: comm.scan_async(host),
            lambda: comm.send(host, (RANK + 1) % SIZE),
        ):
            with raises(TypeError, "in host memory", os.environ["ONLY"], 'transport="auto"'):
                call()
        if os.environ["ONLY"] == "leader":
            with raises(TransportUnavailable, "allreduce_many"):
                comm.allreduce_many([good])
        comm.barrier()
        np.testing.assert_array_equal(comm.allreduce(good).get(), np.full(SIZE, SIZE * 1.0))


class Unchanging:
    """An array of a library that exports it by DLPack only, as JAX does."""

    def __init__(self, values: Any) -> None:
        self._array = array(values)
        self.dtype = self._array.dtype

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self._array.device.id)

    def __dlpack__(self, **_: Any) -> Any:
        cupy.cuda.get_current_stream().synchronize()
        return self._array._host.__dlpack__()


Unchanging.__module__ = "jaxlib"


@case
def copied() -> None:
    """Calls that no engine of devices runs copy every kind of device array, also those without copies of their own."""
    with start(deterministic=True) as comm:
        x = Unchanging(np.arange(5.0) + RANK)
        y = comm.empty(5, "float64", where="cuda")
        assert comm.allreduce(x, out=y) is y
        total = SIZE * np.arange(5.0) + SIZE * (SIZE - 1) / 2
        np.testing.assert_array_equal(cupy.asarray(y).get(), total)
        z = comm.scan(y)
        assert type(z) is type(y)
        np.testing.assert_array_equal(cupy.asarray(z).get(), total * (RANK + 1))
        np.testing.assert_array_equal(cupy.asarray(comm.allgather(y)).get(), np.stack([total] * SIZE))
        if RANK == 0:
            comm.send(y, SIZE - 1)
        elif RANK == SIZE - 1:
            comm.recv(z, 0)
            np.testing.assert_array_equal(cupy.asarray(z).get(), total)
        comm.broadcast(y, root=0)
        with raises(TypeError, "give out="):
            comm.scan(x)
        with raises(TypeError, "JAX", "must not be written"):
            comm.scan(y, out=x)
        with raises(ValueError, "not memory of a CUDA device"):
            gone = Unchanging(np.ones(3))
            gone._array.free()
            comm.scan(gone, out=comm.empty(3, "float64", where="cuda"))


@case
def killed_while_meeting() -> None:
    comm = start(timeout=60.0)
    comm.barrier()
    if RANK == 1:
        _engine.LeaderMember.meet = _die  # type: ignore[method-assign, assignment]
        comm.allreduce(array(np.ones(4)))
    _survive(comm, lambda: comm.allreduce(array(np.ones(4))), 1)


def _die(*_: Any) -> Any:
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)


@case
def unable() -> None:
    """A rank that cannot take part: all ranks go through host memory, and say why."""
    with start() as comm:
        np.testing.assert_array_equal(comm.allreduce(array(np.ones(4))).get(), np.full(4, SIZE * 1.0))
        assert last_engine(comm) != "leader"
        text = comm.explain("allreduce", 64)
        assert os.environ["WHY"] in text, text


@case
def no_room_for_a_result() -> None:
    """The device's memory is full when a new array is made for a result: the error names rank, device and cure."""
    with start(timeout=30.0) as comm:
        x = array(np.ones(1 << 18, np.float64))  # 2 MiB
        own = comm.empty(1 << 18, "float64", where="cuda")
        out = array(np.zeros(1 << 18, np.float64))
        comm.allreduce(x, out=out)
        os.environ["STAND_IN_MOST_MIB"] = "1"
        for call in (
            lambda: comm.allreduce(x),
            lambda: comm.allreduce(own),
            lambda: comm.empty(1 << 20, where="cuda"),
        ):
            with raises(TransportUnavailable, f"rank {RANK}: ", "device 0", "free arrays"):
                call()
        comm.allreduce(x, out=out)
        np.testing.assert_array_equal(out.get()[::1000], SIZE)


@case
def out_of_memory() -> None:
    """The device's memory is full when a call has to stage its array: all ranks learn it."""
    comm = start(timeout=30.0)
    comm.allreduce(array(np.ones(4)))
    driver.kind = "none" if RANK == 1 else "handle"
    x = array(np.ones(1 << 18, np.float64))  # 2 MiB, and more than that in the heap
    os.environ["STAND_IN_MOST_MIB"] = "1"
    begun = time.monotonic()
    with raises((TransportUnavailable, Aborted), "rank 1" if RANK != 1 else "memory is full"):
        comm.allreduce(x, out=x)
        comm.synchronize()
        comm.barrier()
    assert time.monotonic() - begun < 5.0
    comm.close()


if __name__ == "__main__":
    case.run(*sys.argv[1:])
