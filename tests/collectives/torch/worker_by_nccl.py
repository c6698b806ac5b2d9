"""A rank whose messages of CUDA tensors NCCL carries: cases by their names, on the stand-ins for the driver and NCCL.

WORKER_DEVICE names the rank's device, else its number. WORKER_WHY is a part of the error of `refused`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

import collectives.torch
from collectives import ConfigMismatch, OpTimeout, PeerLost, TransportUnavailable
from tests.collectives.cuda.by_name import Cases, raises
from tests.collectives.cuda.runs_on import RANK, SIZE, Gate
from tests.collectives.torch import stand_in_cuda

RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE
LONG: Final = 1 << 18  # elements: more than a message that NCCL's stand-in takes before its receiver has come
SOON: Final = 2.0  # seconds

case = Cases()


def begin(timeout: float = 20.0, options: Any = None) -> Any:
    stand_in_cuda.install(int(os.environ.get("WORKER_DEVICE", RANK)))
    dist.init_process_group(
        "collectives",
        store=dist.FileStore(os.environ["COLLECTIVES_STORE"].removeprefix("file://") + "-torch", SIZE),
        rank=RANK,
        world_size=SIZE,
        timeout=timedelta(seconds=timeout),
        pg_options=options,
    )
    return dist.group.WORLD


def end() -> None:
    dist.barrier()
    dist.destroy_process_group()


def on_device(*values: float, count: int = 0, dtype: Any = torch.float32) -> Any:
    values = values * (count or 1)
    return stand_in_cuda.cuda(torch.tensor(values, dtype=dtype))


def equal(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found.cpu(), torch.as_tensor(expected, dtype=found.dtype), rtol=0, atol=0)


def messages(group: Any) -> list[str]:
    """The engines of this rank's messages on the communicator of the process group."""
    return [o["engine"] for o in group.communicator.dump()["operations"] if o["collective"] in ("send", "recv")]


def tagged(made: Callable[[float], Any]) -> None:
    """Messages that are received in another order than they are sent, without their source."""
    if RANK == 0:
        works = [dist.isend(made(float(tag)), 1, tag=tag) for tag in (5, 6)]
        for work in works:
            assert work is not None
            work.wait()
    else:
        for tag in (6, 5):
            y = made(0.0)
            assert dist.recv(y, tag=tag) == 0
            equal(y, [float(tag)] * 2)


def ring(x: Any, y: Any) -> list[Any]:
    return [dist.P2POp(dist.isend, x, RIGHT), dist.P2POp(dist.irecv, y, LEFT)]


@case
def both_ways() -> None:
    group = begin()
    x, y = on_device(RANK + 1.0, count=LONG), on_device(0.0, count=LONG)
    if RANK == 0:
        dist.send(x, 1)
        assert dist.recv(y, 1) == 1
    else:
        assert dist.recv(y, 0) == 0
        dist.send(x, 0)
    equal(y, [2.0 - RANK] * LONG)
    for dtype in (torch.bfloat16, torch.float8_e5m2, torch.complex64, torch.int16, torch.bool):
        x = stand_in_cuda.cuda(torch.tensor([3.0, 0.0]).to(dtype))
        y = stand_in_cuda.cuda(torch.zeros(2, dtype=dtype))
        work = dist.isend(x, 1) if RANK == 0 else dist.irecv(y, 0)
        assert work is not None and work.wait()
        if RANK == 1:
            assert torch.equal(y.cpu().view(torch.uint8), x.cpu().view(torch.uint8))
    # Not contiguous, on the sender and on the receiver.
    table, into = stand_in_cuda.cuda(torch.arange(6.0).view(2, 3)), stand_in_cuda.cuda(torch.zeros(2, 3))
    if RANK == 0:
        dist.send(table.T, 1)
    else:
        dist.recv(into.T, 0)
        equal(into, table.cpu())
    none = on_device()
    dist.send(none, 1) if RANK == 0 else dist.recv(none, 0)
    assert set(messages(group)) == {"nccl"}
    # Tensors in host memory go as without NCCL: with tags, in any order, and from any rank.
    tagged(lambda value: torch.full((2,), value))
    end()


@case
def batches() -> None:
    """All ranks send first: only together do the messages not wait for each other."""
    group = begin()
    for step in range(3):
        x, y = on_device(RANK + 10.0 * step, count=LONG), on_device(-1.0, count=LONG)
        works = dist.batch_isend_irecv(ring(x, y))
        assert len(works) == 1, "one for the batch, as with torch's NCCL"
        works[0].wait()
        equal(y, [LEFT + 10.0 * step] * LONG)
    # Several messages between two ranks keep their order; a batch may have some in host memory.
    xs = [on_device(100.0 * i + RANK) for i in range(3)]
    ys = [on_device(0.0) for _ in range(3)]
    host = torch.zeros(1)
    operations = [
        *(dist.P2POp(dist.irecv, y, LEFT) for y in ys),
        dist.P2POp(dist.irecv, host, LEFT),
        *(dist.P2POp(dist.isend, x, RIGHT) for x in xs),
        dist.P2POp(dist.isend, torch.tensor([7.0 + RANK]), RIGHT),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for i, y in enumerate(ys):
        equal(y, [100.0 * i + LEFT])
    equal(host, [7.0 + LEFT])
    # A message to this rank itself.
    x, y = on_device(RANK + 0.5), on_device(0.0)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, RANK), dist.P2POp(dist.irecv, y, RANK)]):
        work.wait()
    equal(y, [RANK + 0.5])
    sent, received = dist.isend(x, RANK), dist.irecv(x, RANK)
    assert sent is not None and received is not None and sent.wait() and received.wait()
    x, y = on_device(RANK + 0.25, count=LONG), on_device(0.0, count=LONG)
    with dist.distributed_c10d._coalescing_manager(group, x.device, async_ops=True) as coalesced:
        for operation in ring(x, y):
            operation.op(operation.tensor, operation.peer)
        total = on_device(RANK + 1.0)
        group.allreduce([total])
        for operation in ring(y, x):
            operation.op(operation.tensor, operation.peer)
    coalesced.wait()
    equal(total, [SIZE * (SIZE + 1) / 2])
    equal(y, [LEFT + 0.25] * LONG)
    equal(x, [(LEFT - 1) % SIZE + 0.25] * LONG)
    end()


@case
def order() -> None:
    """A message waits for the work in the stream, and nothing on the host; collectives come in the order of calls."""
    begin()
    stream, gate = stand_in_cuda.Stream(), Gate()
    x, y, total = on_device(1.0 + RANK), on_device(0.0), on_device(1.0)
    with torch.cuda.stream(stream):
        gate.hold(stream)
        works = dist.batch_isend_irecv(ring(x, y))
        works[0].wait()  # in the stream
        later = dist.all_reduce(total, async_op=True)
        assert not works[0].is_completed() and not later.is_completed()
        with raises(OpTimeout):
            works[0].wait(timedelta(seconds=0.05))
        x.fill_(5.0 + RANK)  # still before the message, since the gate is in its stream
        gate.open()
        later.wait()
        equal(y, [5.0 + LEFT])
        equal(total, [2.0])
        assert works[0].is_completed() and works[0].is_success()
    # A message, a collective and a message back, none of which the host waits for.
    a, b, c = on_device(RANK + 1.0), on_device(RANK + 1.0), on_device(0.0)
    first = dist.isend(a, 1) if RANK == 0 else dist.irecv(c, 0)
    dist.all_reduce(b)
    second = dist.irecv(c, 1) if RANK == 0 else dist.isend(b, 0)
    for work in (first, second):
        assert work is not None
        work.wait()
    equal(b, [3.0])
    equal(c, [3.0] if RANK == 0 else [1.0])
    end()


@case
def wrong() -> None:
    """Errors come before anything is sent, and the group goes on."""
    group = begin()
    x, y = on_device(1.0 + RANK), on_device(0.0)
    with raises(ValueError, "tag is 3", "no tags", "COLLECTIVES_TORCH_MESSAGES=host"):
        dist.isend(x, RIGHT, tag=3)
    with raises(ValueError, "tag is 3"):
        dist.irecv(y, LEFT, tag=3)
    with raises(ValueError, "give src"):
        dist.recv(y)
    operations = [*ring(x, y), dist.P2POp(dist.isend, x, RIGHT, tag=1)]
    with raises(ValueError, "tag is 1"):
        dist.batch_isend_irecv(operations)
    assert messages(group) == []
    for work in dist.batch_isend_irecv(operations[:2]):
        work.wait()
    equal(y, [1.0 + LEFT])
    assert len(messages(group)) == 2
    end()


@case
def objects() -> None:
    begin()
    device = torch.device("cuda", torch.cuda.current_device())
    for use_batch in (False, True):
        given = [{"step": 7}, "text", list(range(100))]
        found: list[Any] = [None] * 3
        if RANK == 0:
            dist.send_object_list(given, 1, device=device, use_batch=use_batch)
        else:
            dist.recv_object_list(found, 0, device=device, use_batch=use_batch)
            assert found == given
    end()


@case
def subgroup() -> None:
    """A group of some ranks has messages of its own, and others take no part in them."""
    begin()
    pair = dist.new_group([0, 2])
    if RANK != 1:
        x, y, peer = on_device(RANK + 1.0, count=LONG), on_device(0.0, count=LONG), 2 - RANK
        operations = [dist.P2POp(dist.isend, x, peer, group=pair), dist.P2POp(dist.irecv, y, peer, group=pair)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        equal(y, [peer + 1.0] * LONG)
        assert set(messages(pair)) == {"nccl"}
    end()


@case
def killed() -> None:
    """The receiver learns of a sender that dies, and its stream is free again."""
    group = begin()
    y = on_device(0.0)
    dist.barrier()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    work = dist.irecv(y, 1)
    assert work is not None
    with raises(PeerLost, "rank 1"):
        work.wait(timedelta(seconds=20))
    assert time.monotonic() - begun < SOON
    torch.cuda.current_stream().synchronize()
    assert isinstance(work.exception(), PeerLost) and work.is_completed() and not work.is_success()
    with raises(PeerLost, "rank 1"):
        dist.send(y, 1)
    group.shutdown()


@case
def alone() -> None:
    """A message that nobody receives ends at its deadline."""
    group = begin(timeout=1.5)
    if RANK == 0:
        work = dist.isend(on_device(1.0, count=LONG), 1)
        assert work is not None
        with raises(OpTimeout):
            work.wait(timedelta(seconds=20))
        torch.cuda.current_stream().synchronize()
    else:
        time.sleep(3)
    group.shutdown()


@case
def different() -> None:
    with raises(ConfigMismatch, "messages of CUDA tensors by NCCL", "rank 0", "rank 1"):
        begin()


@case
def refused() -> None:
    """NCCL cannot be used: all ranks say so, and for the same reason."""
    with raises(TransportUnavailable, os.environ["WORKER_WHY"]):
        begin()


@case
def unknown() -> None:
    with raises(ValueError, "COLLECTIVES_TORCH_MESSAGES is 'gloo'", "'host' or 'nccl'"):
        begin()
    with raises(ValueError, "Options.messages is 'mpi'"):
        begin(options=collectives.torch.Options(messages="mpi"))


@case
def led() -> None:
    """Ranks that share a device: NCCL carries messages, and a leader runs collectives."""
    group = begin()
    x, y = on_device(RANK + 1.0, count=LONG), on_device(0.0, count=LONG)
    dist.all_reduce(y)
    for work in dist.batch_isend_irecv(ring(x, y)):
        work.wait()
    dist.all_reduce(x)
    equal(y, [LEFT + 1.0] * LONG)
    equal(x, [3.0] * LONG)
    engines = [o["engine"] for o in group.communicator.dump()["operations"] if o["collective"] == "allreduce"]
    assert "leader" in engines and set(messages(group)) == {"nccl"}
    end()


@case
def through_host() -> None:
    """Without the setting, or with Options(messages="host"): tags, any source, and no order with other operations."""
    options = collectives.torch.Options(messages="host") if "COLLECTIVES_TORCH_MESSAGES" in os.environ else None
    group = begin(options=options)
    x, y = on_device(RANK + 1.0, count=LONG), on_device(0.0, count=LONG)
    works = dist.batch_isend_irecv(ring(x, y))
    assert len(works) == 2
    for work in works:
        work.wait()
    equal(y, [LEFT + 1.0] * LONG)
    tagged(lambda value: on_device(value, count=2))
    assert messages(group) == [] and group.communicator.memory()["nccl"] == 0
    end()


if __name__ == "__main__":
    case.run(*sys.argv[1:])
