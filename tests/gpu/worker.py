"""Cases that only a real device can run: arrays of PyTorch and JAX, streams, forked helpers of a data loader.

The names of cases are the arguments. TRANSPORT: of the communicator. Rank r uses device r, counted modulo the number of
devices.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import cupy
import numpy as np

import collectives
from collectives.native import _engine
from collectives.schedule.table import parse
from tests.collectives.cuda.by_name import Cases, raises

RANK, SIZE = int(os.environ["COLLECTIVES_RANK"]), int(os.environ["COLLECTIVES_SIZE"])
TRANSPORT = os.environ.get("TRANSPORT", "auto")
STAGED = "allreduce any any any staging memory=cuda"
DEVICE = RANK % max(1, len(_engine.cuda_devices()))
case = Cases()


def start(**options: Any) -> collectives.Communicator:
    cupy.cuda.Device(DEVICE).use()
    return collectives.init(timeout=30.0, **{"transport": TRANSPORT, **options})


def total(count: int) -> Any:
    return SIZE * np.arange(count, dtype=np.float32) + SIZE * (SIZE - 1) / 2


@case
def torch_arrays() -> None:
    import torch

    device = torch.device("cuda", DEVICE)
    torch.cuda.set_device(device)
    with start() as comm:
        x = torch.arange(1000, dtype=torch.float32, device=device) + RANK
        expected = torch.from_numpy(total(1000))
        y = comm.allreduce(x)
        assert type(y) is torch.Tensor and y.device == device
        assert torch.equal(y.cpu(), expected)
        out = torch.empty_like(x)
        work = comm.allreduce_async(x, out=out)
        assert work.wait() is out and torch.equal(out.cpu(), expected)
        side = torch.cuda.Stream(device)
        with torch.cuda.stream(side):
            z = comm.allreduce(x * 2)
            z += 1  # in stream order, without a wait on the host
            assert torch.equal(z.cpu(), 2 * expected + 1)
        halves = torch.full((64,), RANK + 1, dtype=torch.bfloat16, device=device)
        assert torch.equal(comm.allreduce(halves).cpu(), torch.full((64,), SIZE * (SIZE + 1) / 2, dtype=torch.bfloat16))
        root = torch.full((5,), float(RANK), device=device)
        comm.broadcast(root, SIZE - 1)
        assert torch.equal(root.cpu(), torch.full((5,), SIZE - 1.0))
        if TRANSPORT == "auto":  # this process's own order of operations holds on whatever runs it
            assert torch.equal(comm.scan(torch.ones(3, device=device)).cpu(), torch.full((3,), RANK + 1.0))
        with raises(TypeError, "gradient"):
            comm.allreduce(torch.ones(3, device=device, requires_grad=True))
        with raises(ValueError, "not contiguous"):
            comm.allreduce(torch.ones(3, 3, device=device).T)


@case
def jax_arrays() -> None:
    import jax

    with start() as comm, jax.default_device(jax.devices("gpu")[DEVICE]):
        x = jax.numpy.arange(1000, dtype=np.float32) + RANK
        y = cupy.empty(1000, np.float32)
        comm.allreduce(x, out=y)
        np.testing.assert_array_equal(y.get(), total(1000))
        np.testing.assert_array_equal(np.asarray(x), np.arange(1000) + RANK)  # it was not written
        with raises(TypeError, "JAX", "must not be written"):
            comm.allreduce(y, out=x)


@case
def tensorflow_arrays() -> None:
    """By DLPack, after a wait on the host; a tensor is never written."""
    import tensorflow as tf

    with start() as comm, tf.device(f"/GPU:{DEVICE}"):
        x = tf.range(1000, dtype=tf.float32) + float(RANK)
        assert "GPU" in x.device, x.device
        y = cupy.empty(1000, np.float32)
        comm.allreduce(x, out=y)
        np.testing.assert_array_equal(y.get(), total(1000))
        np.testing.assert_array_equal(x.numpy(), np.arange(1000) + RANK)
        with raises(TypeError, "TensorFlow", "must not be written"):
            comm.allreduce(y, out=x)


@case
def copied_arrays() -> None:
    """Calls that run through host memory: arrays of JAX and of `comm.empty` are copied by the driver."""
    import jax

    with start(transport="auto", deterministic=True) as comm, jax.default_device(jax.devices("gpu")[DEVICE]):
        x = jax.numpy.arange(1000, dtype=np.float32) + RANK
        y = comm.empty(1000, where=f"cuda:{DEVICE}")
        comm.allreduce(x, out=y)
        np.testing.assert_array_equal(cupy.asarray(y).get(), total(1000))
        half = jax.numpy.full(5, RANK + 1.0, jax.numpy.bfloat16)
        z = comm.empty(5, "bfloat16", where=f"cuda:{DEVICE}")
        comm.allreduce(half, out=z)
        assert comm.allgather(z).shape == (SIZE, 5)
        scanned = comm.scan(y)
        np.testing.assert_array_equal(cupy.asarray(scanned).get(), total(1000) * (RANK + 1))


@case
def dropped() -> None:
    """Arrays that are dropped while their stream is busy, and whose memory would be used again at once."""
    import torch

    device = torch.device("cuda", DEVICE)
    torch.cuda.set_device(device)
    with start() as comm:
        comm.allreduce(torch.ones(4, device=device))
        side = torch.cuda.Stream(device)
        results = []
        for i in range(20):
            with torch.cuda.stream(side):
                torch.cuda._sleep(20_000_000)  # some milliseconds
            x = torch.full((1 << 20,), float(i + RANK), device=device)
            out = torch.empty(1 << 20, device=device)
            side.wait_stream(torch.cuda.current_stream(device))
            comm.allreduce(x, out=out, stream=side)
            del x
            torch.full((1 << 20,), -1.0, device=device)  # in the current stream
            results.append(out)
        comm.synchronize(side)
        for i, out in enumerate(results):
            assert torch.equal(out.cpu(), torch.full((1 << 20,), SIZE * i + SIZE * (SIZE - 1) / 2)), i


@case
def jax_compiled() -> None:
    """By XLA's FFI, in XLA's stream; callbacks would be another path."""
    import jax

    import collectives.jax as cj

    with start() as comm, jax.default_device(jax.devices("gpu")[DEVICE]):
        step = jax.jit(lambda x: cj.allreduce(x * 2, comm=comm) + 1)
        gathered = jax.jit(lambda x: cj.allgather(x, comm=comm).sum(0))
        for i in range(3):
            x = jax.numpy.arange(1000, dtype=np.float32) + RANK + i
            np.testing.assert_array_equal(np.asarray(step(x)), 2 * (total(1000) + SIZE * i) + 1)
            np.testing.assert_array_equal(np.asarray(gathered(x)), total(1000) + SIZE * i)
        text = step.lower(x).as_text()
        assert "pycollectives_run" in text, text


@case
def staged() -> None:
    """Through pinned memory in slices, and calls that are copied as a whole."""
    with start(transport="auto", table=parse(STAGED)) as comm:
        for count in (10, 1_100_000, 16 << 20):
            x = cupy.arange(count, dtype=cupy.float32) % 1000 + RANK
            y = comm.allreduce(x)
            expected = SIZE * (np.arange(count, dtype=np.float32) % 1000) + SIZE * (SIZE - 1) / 2
            np.testing.assert_array_equal(y.get(), expected)
            works = [comm.allreduce_async(x, "max") for _ in range(2)]
            for work in works:
                np.testing.assert_array_equal(work.wait().get(), x.get() - RANK + SIZE - 1)
            comm.allreduce(x, out=x)
            np.testing.assert_array_equal(x.get(), expected)
        assert comm.dump()["operations"][-1]["engine"] not in ("leader", "nccl")
        large = cupy.arange(24 << 20, dtype=cupy.float32) % 1000 + RANK  # more slices than there is host memory for
        for root in range(2):
            y = large.copy()
            comm.broadcast(y, root=root)
            assert bool((y == large - RANK + root).all())
            reduced = comm.reduce(large, "max", root=root)
            assert (reduced is None) == (root != RANK)
            assert reduced is None or bool((reduced == large - RANK + SIZE - 1).all())
        part = cupy.full(4 << 20, RANK, cupy.float32)
        every = comm.allgather(part)
        assert all(bool((every[r] == r).all()) for r in range(SIZE))
        assert bool((comm.reduce_scatter(every) == SIZE * RANK).all())
        swapped = comm.alltoall(cupy.full((SIZE, 4 << 20), RANK, cupy.float32))
        assert all(bool((swapped[r] == r).all()) for r in range(SIZE))
        whole = comm.allgather(cupy.full(3, RANK, cupy.int32))
        np.testing.assert_array_equal(whole.get(), np.repeat(np.arange(SIZE), 3).reshape(SIZE, 3))


@case
def staged_short() -> None:
    """As much of `staged` as a checker of memory has time for."""
    with start(transport="auto", table=parse(STAGED)) as comm:
        x = cupy.arange(1_100_000, dtype=cupy.float32) % 1000 + RANK
        expected = SIZE * (np.arange(x.size, dtype=np.float32) % 1000) + SIZE * (SIZE - 1) / 2
        np.testing.assert_array_equal(comm.allreduce(x).get(), expected)
        np.testing.assert_array_equal(comm.allreduce_async(x).wait().get(), expected)
        assert comm.dump()["operations"][-1]["engine"] not in ("leader", "nccl")


@case
def streams() -> None:
    """Calls in several streams, kernels before and after, and 200 operations in flight."""
    with start() as comm:
        first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
        x, y = cupy.zeros(1 << 20, cupy.float32), cupy.zeros(1 << 20, cupy.float32)
        cupy.cuda.get_current_stream().synchronize()
        for i in range(10):
            with first:
                x.fill(RANK + i)
                comm.allreduce(x, out=y)
                y *= 2
                event = first.record()
            second.wait_event(event)
            with second:
                comm.allreduce(y, "max", out=x)
                np.testing.assert_array_equal(x.get()[::1000], 2 * (SIZE * i + SIZE * (SIZE - 1) / 2))
            first.synchronize()
        with first:
            x.fill(1)
            works = [comm.allreduce_async(x, "max", out=x) for _ in range(200)]
        comm.synchronize(first)
        assert all(work.done() for work in works)
        np.testing.assert_array_equal(x.get()[::1000], 1)


@case
def loader() -> None:
    """Helpers of a DataLoader are forked while CUDA is live; they hand over data, and the calls go on."""
    import torch

    device = torch.device("cuda", DEVICE)
    torch.cuda.set_device(device)
    with start() as comm:
        x = torch.ones(4, device=device)
        comm.allreduce(x, out=x)
        data = torch.utils.data.TensorDataset(torch.arange(64.0))
        loading = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context="fork")
        for _ in range(2):
            seen = torch.zeros((), device=device)
            for (batch,) in loading:
                seen += comm.allreduce(batch.to(device)).sum()
            assert float(seen) == SIZE * 64 * 63 / 2, seen


if __name__ == "__main__":
    case.run(*sys.argv[1:])
