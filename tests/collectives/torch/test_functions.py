"""Collectives on tensors and a communicator, and their gradients."""

from __future__ import annotations

from typing import Any

import pytest

from collectives.core.communicator import Communicator
from collectives.native.errors import Aborted
from tests.collectives.groups import outcomes, ranks
from tests.waiting import eventually

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import collectives.torch as ct  # noqa: E402

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.uint8, torch.complex64]


def test_allreduce_in_all_its_forms() -> None:
    def body(comm: Communicator) -> None:
        x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]) * (comm.rank + 1)
        assert ct.allreduce(x, comm=comm).tolist() == [[2.0, 4.0], [6.0, 8.0]]
        assert ct.allreduce(x, "sum", comm=comm).tolist() == [[6.0, 12.0], [18.0, 24.0]]
        assert x[0, 0] == comm.rank + 1  # untouched
        assert ct.allreduce(x.t(), "max", comm=comm).tolist() == [[3.0, 9.0], [6.0, 12.0]]
        handle = ct.allreduce_async(x, "sum", comm=comm)
        assert ct.synchronize(handle).tolist() == [[6.0, 12.0], [18.0, 24.0]]
        assert eventually(lambda: ct.poll(handle), 30)
        turned = x.clone().t()
        assert ct.allreduce_async_(turned, "sum", comm=comm).wait() is turned
        assert turned.tolist() == [[6.0, 18.0], [12.0, 24.0]]
        assert ct.allreduce_(x, comm=comm) is x
        assert x.tolist() == [[2.0, 4.0], [6.0, 8.0]]
        several = [torch.full((3,), comm.rank + 1), torch.full((2, 2), comm.rank + 1.0).bfloat16()]
        found = ct.grouped_allreduce(several, "sum", comm=comm)
        assert [(f.dtype, f.flatten()[0].item()) for f in found] == [(torch.int64, 6), (torch.bfloat16, 6.0)]
        assert ct.grouped_allreduce_async(several, "max", comm=comm).wait()[0].tolist() == [3, 3, 3]
        columns = [torch.full((2, 3), comm.rank + 1.0)[:, 1], torch.ones(1)]
        assert ct.grouped_allreduce_(columns, "sum", comm=comm)[0] is columns[0]
        assert [c.tolist() for c in columns] == [[6.0, 6.0], [3.0]]
        assert ct.grouped_allreduce_async_(columns, comm=comm).wait()[0].tolist() == [6.0, 6.0]
        scalar = ct.allreduce(torch.tensor(comm.rank), "sum", comm=comm)
        assert scalar.shape == () and scalar.item() == 3
        ct.barrier(comm=comm)

    ranks(3, body)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_others_in_every_dtype(dtype: Any) -> None:
    def body(comm: Communicator) -> None:
        rank, size = comm.rank, comm.size
        ragged = torch.full((rank, 2), rank).to(dtype)
        found = ct.allgather(ragged, comm=comm)
        assert found.dtype == dtype and found.real.tolist() == [[1, 1], [2, 2], [2, 2]]
        assert torch.equal(ct.allgather_async(ragged, comm=comm).wait(), found)
        x = torch.full((2,), rank).to(dtype)
        assert ct.broadcast(x, 1, comm=comm).real.tolist() == [1, 1] and x.real.tolist() == [rank] * 2
        assert ct.broadcast_async(x, 2, comm=comm).wait().real.tolist() == [2, 2]
        column = torch.full((2, 2), rank).to(dtype)[:, 0]
        assert ct.broadcast_(column, 2, comm=comm) is column
        assert column.real.tolist() == [2, 2]
        assert ct.broadcast_async_(x, 1, comm=comm).wait() is x
        rows = torch.arange(4).to(dtype).reshape(4, 1)  # one more than ranks: the first has two
        mine = ct.reducescatter(rows, "sum", comm=comm)
        assert mine.real.flatten().tolist() == [[0, 3], [6], [9]][rank]
        sent = torch.full((size + rank, 2), rank).to(dtype)
        got, came = ct.alltoall(sent, [1 + (to == 0) * rank for to in range(size)], comm=comm)
        assert came.tolist() == ([1, 2, 3] if rank == 0 else [1, 1, 1])
        assert got.real[:, 0].tolist() == ([0, 1, 1, 2, 2, 2] if rank == 0 else [0, 1, 2])
        even, _ = ct.alltoall(torch.arange(3).to(dtype), comm=comm)
        assert even.real.tolist() == [rank] * 3

    ranks(3, body)


def test_gradients_are_those_of_the_sum_of_all_losses() -> None:
    """Compared with one process that has every rank's tensors."""
    size = 3
    weights = [torch.linspace(-1, 1, 18).reshape(6, 3) * (r + 1) for r in range(size)]
    inputs = [torch.linspace(0, 2, 18).reshape(6, 3) + r for r in range(size)]

    def together(name: str, xs: list[Any]) -> list[Any]:
        total = torch.stack(xs).sum(0)
        if name == "allgather":
            return [torch.cat(xs)] * size
        if name == "broadcast":
            return [xs[1]] * size
        if name == "reducescatter":
            return list((total / size).chunk(size))
        if name == "alltoall":
            return [torch.cat([x[2 * r : 2 * r + 2] for x in xs]) for r in range(size)]
        return [total if name == "sum" else total / size] * size

    def alone(name: str, comm: Communicator, x: Any) -> Any:
        if name == "allgather":
            return ct.allgather(x, comm=comm)
        if name == "broadcast":
            return ct.broadcast(x, 1, comm=comm)
        if name == "reducescatter":
            return ct.reducescatter(x, comm=comm)
        if name == "alltoall":
            return ct.alltoall(x, comm=comm)[0]
        return ct.allreduce(x, name, comm=comm)

    def loss(y: Any, rank: int) -> Any:
        return (y**2 * weights[rank].repeat(3, 1)[: y.shape[0]]).sum()

    for name in ("sum", "average", "allgather", "broadcast", "reducescatter", "alltoall"):
        wanted = [x.clone().requires_grad_() for x in inputs]
        sum(loss(y, r) for r, y in enumerate(together(name, wanted))).backward()

        def body(comm: Communicator, name: str = name) -> Any:
            x = inputs[comm.rank].clone().requires_grad_()
            loss(alone(name, comm, x), comm.rank).backward()
            return x.grad

        for found, reference in zip(ranks(size, body), wanted, strict=True):
            grad = torch.zeros_like(found) if reference.grad is None else reference.grad
            assert torch.allclose(found, grad, atol=1e-5), name

    def unsupported(comm: Communicator) -> None:
        with pytest.raises(NotImplementedError, match="max"):
            ct.allreduce(torch.ones(1, requires_grad=True), "max", comm=comm).sum().backward()

    ranks(1, unsupported)


def test_what_cannot_be_is_refused_before_anything_is_sent() -> None:
    def body(comm: Communicator) -> None:
        with pytest.raises(TypeError, match="sparse"):
            ct.allreduce(torch.eye(2).to_sparse(), comm=comm)
        with pytest.raises(TypeError, match="meta"):
            ct.allreduce_(torch.ones(2, device="meta"), comm=comm)
        with pytest.raises(TypeError, match="float8"):
            ct.allreduce(torch.ones(2).to(torch.float8_e5m2), comm=comm)
        with pytest.raises(ValueError, match="splits"):
            ct.alltoall(torch.ones(3), [1, 3], comm=comm)
        with pytest.raises(ValueError, match="evenly"):
            ct.alltoall(torch.ones(3), comm=comm)
        with pytest.raises(ValueError, match="0-d"):
            ct.reducescatter(torch.tensor(1.0), comm=comm)
        comm.barrier()  # both are there
        with pytest.raises(RuntimeError, match="2 communicators are open"):
            ct.allreduce(torch.ones(1))
        assert ct.allreduce(torch.ones(1), "sum", comm=comm).item() == 2.0  # still in step

    ranks(2, body)


def test_objects_and_parameters() -> None:
    def body(comm: Communicator) -> None:
        things: list[Any] = [b"\x00bytes", {"a": [1, 2.5, None, True]}, [], "text", 0]
        for value in things:
            assert ct.broadcast_object(value if comm.rank == 1 else None, 1, comm=comm) == value
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        model[1].running_mean += comm.rank
        ct.broadcast_parameters(model, 1, comm=comm)
        ct.broadcast_parameters(model.state_dict(), 1, comm=comm)
        ct.broadcast_parameters(model.named_parameters(), 1, comm=comm)
        assert model[1].running_mean.tolist() == [1.0, 1.0]
        weights = comm.allgather(model[0].weight.detach().numpy())
        assert (weights == weights[0]).all()
        model[0].weight.data.fill_(comm.rank)
        model[1].num_batches_tracked += comm.rank  # no average of whole numbers
        ct.average_parameters(model, comm=comm)
        assert model[0].weight.tolist() == [[0.5] * 3] * 2 and model[1].num_batches_tracked == comm.rank
        with pytest.raises(TypeError, match="pairs"):
            ct.broadcast_parameters(list(model.parameters()), comm=comm)

    ranks(2, body)


def test_an_object_that_the_root_cannot_send() -> None:
    done = outcomes(2, lambda comm: ct.broadcast_object(object(), 0, comm=comm))
    assert isinstance(done[0].error, TypeError)
    assert isinstance(done[1].error, Aborted)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_optimizer_state_of_the_root_for_everybody(kind: str) -> None:
    def body(comm: Communicator) -> None:
        model = torch.nn.Linear(3, 2)
        model.weight.data.fill_(0.5)
        settings = {"momentum": 0.9} if kind == "SGD" else {}
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1 * (comm.rank + 1), **settings)
        if comm.rank == 1:  # the other has not made a step yet
            for _ in range(3):
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
        ct.broadcast_optimizer_state(optimizer, 1, comm=comm)
        assert optimizer.param_groups[0]["lr"] == 0.2
        states = optimizer.state_dict()["state"]
        assert len(states) == 2
        for state in states.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    everyones = comm.allgather(value.detach().numpy())
                    assert (everyones == everyones[0]).all()

    ranks(2, body)
