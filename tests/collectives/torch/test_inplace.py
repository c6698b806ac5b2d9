"""Collectives that overwrite tensors, to torch's autograd; and tensors that have no memory of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from collectives.core.communicator import Communicator
from tests.collectives.groups import ranks

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import collectives.torch as ct  # noqa: E402

DOORS: dict[str, Callable[[Any, Communicator], Any]] = {
    "allreduce_": lambda x, comm: ct.allreduce_(x, "sum", comm=comm),
    "allreduce_async_": lambda x, comm: ct.allreduce_async_(x, "sum", comm=comm).wait(),
    "grouped_allreduce_": lambda x, comm: ct.grouped_allreduce_([x], "sum", comm=comm)[0],
    "grouped_allreduce_async_": lambda x, comm: ct.grouped_allreduce_async_([x], "sum", comm=comm).wait()[0],
    "broadcast_": lambda x, comm: ct.broadcast_(x, 1, comm=comm),
    "broadcast_async_": lambda x, comm: ct.broadcast_async_(x, 1, comm=comm).wait(),
}
every_door = pytest.mark.parametrize("name", list(DOORS))


@every_door
@pytest.mark.parametrize("turned", [False, True])
def test_what_was_saved_for_the_backward_pass_may_not_change(name: str, turned: bool) -> None:
    def body(comm: Communicator) -> None:
        x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        x = x.t() if turned else x
        weight = torch.ones(2, 2, requires_grad=True)
        loss = (x * weight).sum()
        DOORS[name](x, comm)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    ranks(2, body)


@every_door
def test_a_leaf_that_requires_a_gradient_is_refused_as_torch_does(name: str) -> None:
    def body(comm: Communicator) -> None:
        x = torch.ones(2, requires_grad=True)
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            x.mul_(2)
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            DOORS[name](x, comm)
        comm.barrier()
        before = x._version
        with torch.no_grad():
            assert DOORS[name](x, comm) is x
        assert x._version > before and x.is_leaf

    ranks(2, body)


@every_door
def test_a_gradient_passes_through(name: str) -> None:
    """Of the sum of every rank's loss, as of the forms that are not in place."""

    def body(comm: Communicator) -> None:
        weight = torch.full((2,), comm.rank + 1.0, requires_grad=True)
        x = weight * 3
        assert DOORS[name](x, comm) is x
        (x.sum() * (comm.rank + 1)).backward()
        total = 3 * (1 + 2)  # of the losses' factors
        expected = total if "allreduce" in name or comm.rank == 1 else 0
        assert weight.grad is not None and weight.grad.tolist() == [expected] * 2

    ranks(2, body)


@every_door
def test_inference_tensors(name: str) -> None:
    def body(comm: Communicator) -> None:
        with torch.inference_mode():
            x = torch.full((2,), comm.rank + 1.0)
            found = DOORS[name](x, comm)
            assert found.tolist() == ([3, 3] if "allreduce" in name else [2, 2])

    ranks(2, body)


def test_a_refused_call_changes_nothing() -> None:
    def body(comm: Communicator) -> None:
        x = torch.ones(2)
        with pytest.raises(TypeError, match="no meaning"):
            ct.allreduce_(x, "land", comm=comm)
        assert x._version == 0

    ranks(2, body)


# --- distributed tensors


@pytest.fixture
def sharded(tmp_path: Any) -> Iterator[Any]:
    dist = pytest.importorskip("torch.distributed")
    from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        yield distribute_tensor(torch.tensor([1.0, 2.0]), DeviceMesh("cpu", [0]), [Shard(0)])
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_distributed_tensors_name_the_cure(sharded: Any) -> None:
    """A shard must not be overwritten by another one, so nobody takes it without being told to."""

    def body(comm: Communicator) -> None:
        words = r"DTensor, which has no memory of its own: give its local shard, \w+.to_local\(\)"
        for call in (
            lambda: ct.allreduce(sharded, comm=comm),
            lambda: ct.allreduce_(sharded, comm=comm),
            lambda: ct.grouped_allreduce([sharded], comm=comm),
            lambda: ct.broadcast_(sharded, comm=comm),
            lambda: ct.allgather(sharded, comm=comm),
            lambda: comm.allreduce(sharded),
            lambda: comm.allreduce(sharded.to_local(), out=sharded),
        ):
            with pytest.raises(TypeError, match=words):
                call()
        for start in (ct.broadcast_parameters, ct.average_parameters):
            first = torch.full((1,), float(comm.rank))
            with pytest.raises(TypeError, match=rf"layer.weight: tensor is a {words}"):
                start({"first": first, "layer.weight": sharded}, comm=comm)
            assert first == comm.rank  # nothing was sent
        assert ct.allreduce(sharded.to_local(), "sum", comm=comm).tolist() == [2, 4]

    ranks(2, body)
