"""How calls on CUDA tensors are translated for the communicator, shown with tensors in host memory.

Nothing here has to do with a device or a stream: the translation uses operations of torch, which work on both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch
from torch.distributed import ReduceOp

import collectives
from collectives.torch.device_operations import DeviceOperations
from collectives.torch.on_streams import run, used
from collectives.torch.operations import Operation
from tests.collectives.groups import ranks

SIZE = 2
Rank = Callable[[DeviceOperations, int, Callable[..., None]], None]


class InHostMemory:
    """A `Work` whose new arrays are tensors, as those of a device are."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def in_stream(self) -> Any:
        result = self._work.in_stream()
        return torch.from_numpy(result) if isinstance(result, np.ndarray) else result


def on_ranks(body: Rank) -> None:
    def rank(comm: collectives.Communicator) -> None:
        def start(operation: Operation) -> Any:
            assert operation.device == "here"
            more = {} if operation.out is None else {"out": operation.out}
            return InHostMemory(getattr(comm, f"{operation.name}_async")(*operation.args, **more))

        def go(*operations: Operation) -> None:
            run(operations, start)

        body(DeviceOperations(comm.rank, SIZE, "here"), comm.rank, go)

    ranks(SIZE, rank)


def equal(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=found.dtype), rtol=0, atol=0)


def test_reductions() -> None:
    def body(of: DeviceOperations, rank: int, go: Callable[..., None]) -> None:
        x = torch.full((4,), rank + 1.0)
        go(of.allreduce(x, ReduceOp(ReduceOp.SUM)))
        equal(x, [3.0] * 4)
        columns = torch.tensor([[1.0, 5.0], [2.0, 6.0]])[:, rank]  # not contiguous
        go(of.allreduce(columns, ReduceOp(ReduceOp.MAX)))
        equal(columns, [5.0, 6.0])
        whole = torch.tensor([-3, 7], dtype=torch.int64) - rank * torch.tensor([1, 1])
        go(of.allreduce(whole, ReduceOp(ReduceOp.AVG)))
        equal(whole, [-3, 6])
        y = torch.full((2,), rank + 1.0)
        go(of.reduce(y, ReduceOp(ReduceOp.SUM), 1))
        equal(y, [3.0, 3.0] if rank == 1 else [1.0, 1.0])
        several = [torch.full((2,), rank + 1.0), torch.full((3,), 1.0)]
        go(*of.allreduce_coalesced(several, ReduceOp(ReduceOp.AVG)))
        equal(several[0], [1.5, 1.5])
        equal(several[1], [1.0] * 3)

    on_ranks(body)


def test_reduce_scatter() -> None:
    def body(of: DeviceOperations, rank: int, go: Callable[..., None]) -> None:
        out = torch.zeros(2)
        inputs = [torch.full((2,), 1.0 + rank), torch.full((2,), 3.0 + rank)]
        go(of.reduce_scatter(out, inputs, ReduceOp(ReduceOp.SUM)))
        equal(out, [3.0, 3.0] if rank == 0 else [7.0, 7.0])
        part = torch.zeros(1 + rank)
        go(of.reduce_scatter(part, [torch.ones(1), torch.ones(2)], ReduceOp(ReduceOp.SUM)))
        equal(part, [2.0] * (1 + rank))
        both = torch.arange(4.0)
        mine = both[2 * rank : 2 * rank + 2]  # a part of the input
        go(of.reduce_scatter_single(mine, both, ReduceOp(ReduceOp.SUM)))
        equal(mine, [0.0, 2.0] if rank == 0 else [4.0, 6.0])
        with pytest.raises(ValueError, match="reduce_scatter_tensor"):
            of.reduce_scatter_single(torch.zeros(3), both, ReduceOp(ReduceOp.SUM))

    on_ranks(body)


def test_movements() -> None:
    def body(of: DeviceOperations, rank: int, go: Callable[..., None]) -> None:
        x = torch.full((2,), float(rank))
        go(of.broadcast(x, 1))
        equal(x, [1.0, 1.0])
        outputs = [torch.zeros(2), torch.zeros(2)]
        go(of.allgather([outputs], torch.full((2,), float(rank))))
        equal(torch.stack(outputs), [[0.0, 0.0], [1.0, 1.0]])
        uneven = [torch.zeros(1), torch.zeros(2)]
        go(of.allgather(uneven, torch.full((1 + rank,), float(rank))))
        equal(torch.cat(uneven), [0.0, 1.0, 1.0])
        whole = torch.zeros(2)
        whole[rank] = rank
        go(of.all_gather_single(whole, whole[rank : rank + 1]))
        equal(whole, [0.0, 1.0])
        go(of.gather(outputs if rank == 0 else [], torch.full((2,), 5.0 + rank), 0))
        if rank == 0:
            equal(torch.stack(outputs), [[5.0, 5.0], [6.0, 6.0]])
        got = torch.zeros(2)
        go(of.scatter(got, [torch.zeros(2), torch.ones(2)] if rank == 1 else [], 1))
        equal(got, [float(rank)] * 2)

    on_ranks(body)


def test_exchanges() -> None:
    def body(of: DeviceOperations, rank: int, go: Callable[..., None]) -> None:
        out = torch.zeros(2)
        go(of.all_to_all_single(out, torch.tensor([10.0 * rank, 10.0 * rank + 1]), [], []))
        equal(out, [0.0 + rank, 10.0 + rank])
        # Rank r sends r + 1 rows to each rank.
        got = torch.zeros(3)
        go(of.all_to_all_single(got, torch.full((2 * (rank + 1),), float(rank)), [1, 2], [rank + 1] * 2))
        equal(got, [0.0, 1.0, 1.0])
        parts = [torch.zeros(1), torch.zeros(2)]
        go(of.alltoall(parts, [torch.full((rank + 1,), float(rank))] * 2))
        equal(torch.cat(parts), [0.0, 1.0, 1.0])
        with pytest.raises(ValueError, match="3 outputs"):
            of.alltoall([out] * 3, [out] * 2)

    on_ranks(body)


def test_messages() -> None:
    """What a tensor without gaps is sent from, and received into, is its own memory."""

    def body(of: DeviceOperations, rank: int, go: Callable[..., None]) -> None:
        x, y = torch.arange(6.0).view(2, 3), torch.zeros(3, 2)
        if rank == 0:
            operation = of.send(x, 1, 0)
            assert operation.args[0].data_ptr() == x.data_ptr()
            go(operation)
            go(of.send(x.T, 1, 0))
        else:
            operation = of.recv(y.view(2, 3), 0, 0)
            assert operation.args[0].data_ptr() == y.data_ptr() and operation.after is None
            go(operation)
            equal(y.view(2, 3), x)
            into = torch.zeros(2, 3)
            go(of.recv(into.T, 0, 0))
            equal(into, x)

    on_ranks(body)


def test_messages_that_nccl_does_not_have() -> None:
    of = DeviceOperations(0, SIZE, "here")
    for message in (of.send, of.recv):
        with pytest.raises(ValueError, match="tag is 3, but NCCL's messages have no tags: give 0"):
            message(torch.ones(1), 1, 3)
        with pytest.raises(TypeError, match="sparse"):
            message(torch.eye(2).to_sparse(), 1, 0)
    with pytest.raises(ValueError, match="give src"):
        of.recv(torch.ones(1), None, 0)


def test_all_memory_that_a_stream_uses_is_known() -> None:
    """Also copies and concatenations, which torch's own call does not name: the allocator has to wait for them."""
    of = DeviceOperations(0, SIZE, "here")
    output, parts = torch.zeros(3), [torch.ones(3), torch.ones(3)]
    operation = of.reduce_scatter(output, parts, ReduceOp(ReduceOp.SUM))
    assert {one.data_ptr() for one in used([operation])} == {operation.args[0].data_ptr(), output.data_ptr()}
    turned = torch.ones(3, 2).T
    operation = of.allreduce(turned, ReduceOp(ReduceOp.SUM))
    assert operation.args[0].data_ptr() != turned.data_ptr()
    assert {one.data_ptr() for one in used([operation])} == {operation.args[0].data_ptr(), turned.data_ptr()}
    several = of.allreduce_coalesced([torch.ones(2), turned], ReduceOp(ReduceOp.SUM))
    assert {one.data_ptr() for one in several[0].args[0]} <= {one.data_ptr() for one in used(several)}
    whole = of.allgather([torch.zeros(3), torch.zeros(3)], torch.ones(3))
    out: Any = whole.out
    assert out.data_ptr() in {one.data_ptr() for one in used([whole])}
