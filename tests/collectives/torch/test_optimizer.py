"""DistributedOptimizer and ModelAverager: ranks make the steps of one process with all the data."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from collectives.core.communicator import Communicator
from collectives.native.errors import DesyncError, PeerLost
from tests.collectives.groups import outcomes, ranks

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import collectives.torch as ct  # noqa: E402

SIZE = 2
_one_at_a_time = threading.Lock()


class Model(torch.nn.Module):  # type: ignore[name-defined]
    """An embedding, layers, one that some ranks use, and one that nobody does."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(20, 8, sparse=sparse)
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
        self.aside = torch.nn.Linear(8, 8)
        self.never = torch.nn.Linear(8, 8)
        self.last = torch.nn.Linear(8, 3)

    def forward(self, x: Any, aside: bool) -> Any:
        h = self.layers(self.words(x).mean(1))
        return self.last(torch.tanh(h + self.aside(h) if aside else h))


def batch(step: int, rank: int) -> tuple[Any, Any]:
    rng = np.random.default_rng([step, rank])
    return torch.from_numpy(rng.integers(0, 20, (8, 5))), torch.from_numpy(rng.integers(0, 3, 8))


def loss(model: Any, step: int, rank: int) -> Any:
    x, y = batch(step, rank)
    return torch.nn.functional.cross_entropy(model(x, aside=rank == 0), y)


def build(sparse: bool = False) -> Any:
    """The same one every time: threads share torch's generator."""
    with _one_at_a_time:
        torch.manual_seed(0)
        return Model(sparse)


def linear(shape: tuple[int, int] = (4, 2), bias: bool = True) -> Any:
    model = torch.nn.Linear(*shape, bias=bias)
    for parameter in model.parameters():
        parameter.data.fill_(0.5)
    return model


def optimizer_of(model: Any, sparse: bool = False) -> Any:
    return (
        torch.optim.SparseAdam(list(model.parameters()), 0.01) if sparse else torch.optim.Adam(model.parameters(), 0.01)
    )


def alone(steps: int, passes: int = 1) -> list[Any]:
    """One process with the data of all ranks."""
    model = build()
    optimizer = optimizer_of(model)
    for step in range(steps):
        optimizer.zero_grad()
        for turn in range(passes):
            for rank in range(SIZE):
                (loss(model, step * passes + turn, rank) / SIZE).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def distributed(comm: Communicator, steps: int, passes: int = 1, sparse: bool = False, **settings: Any) -> Any:
    model = build(sparse)
    optimizer = ct.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), 0.01) if not sparse else torch.optim.SGD(model.parameters(), 0.1),
        model.named_parameters(),
        backward_passes_per_step=passes,
        comm=comm,
        **settings,
    )
    for step in range(steps):
        optimizer.zero_grad()
        for turn in range(passes):
            loss(model, step * passes + turn, comm.rank).backward()
        optimizer.step()
    optimizer.close()
    return model


@pytest.mark.parametrize(
    "settings", [{}, {"bucket_bytes": 300}, {"passes": 3, "bucket_bytes": 1000}], ids=["one", "many", "passes"]
)
def test_steps_of_one_process(settings: dict[str, Any]) -> None:
    found = ranks(SIZE, lambda comm: [p.detach() for p in distributed(comm, 5, **settings).parameters()])
    wanted = alone(5, settings.get("passes", 1))
    for a, b, w in zip(*found, wanted, strict=True):
        assert torch.equal(a, b)
        assert torch.allclose(a, w, atol=1e-5)


def test_parameters_that_nobody_uses_keep_having_no_gradient() -> None:
    def body(comm: Communicator) -> None:
        model = distributed(comm, 3, bucket_bytes=300)
        assert model.never.weight.grad is None
        assert model.aside.weight.grad is not None  # rank 0 has one

    ranks(SIZE, body)


def test_sparse_gradients_stay_sparse_and_are_gathered() -> None:
    def run(sparse: bool) -> list[Any]:
        def body(comm: Communicator) -> Any:
            model = distributed(comm, 4, sparse=sparse, **({} if sparse else {"sparse_as_dense": True}))
            assert not sparse or model.words.weight.grad.is_sparse
            return model.words.weight.detach()

        return ranks(SIZE, body)

    stays = run(True)
    assert torch.equal(stays[0], stays[1])
    dense = ranks(SIZE, lambda comm: distributed(comm, 4, sparse=True, sparse_as_dense=True).words.weight.detach())
    assert torch.allclose(stays[0], dense[0], atol=1e-6)


@pytest.mark.parametrize("error_feedback", [False, True])
@pytest.mark.parametrize("compression", ["fp16", "bf16", "fp8", "int8"])
def test_compression(compression: str, error_feedback: bool) -> None:
    found = ranks(SIZE, lambda comm: distributed(comm, 5, compression=compression, error_feedback=error_feedback))
    parameters = [list(model.parameters()) for model in found]
    exact = alone(5)
    for a, b, w in zip(*parameters, exact, strict=True):
        assert torch.equal(a, b)
        assert torch.allclose(a, w, atol=0.05)
    assert any(not torch.allclose(a, w, atol=1e-7) for a, w in zip(parameters[0], exact, strict=True))


def test_buckets_start_before_the_backward_pass_ends() -> None:
    def body(comm: Communicator) -> list[int]:
        model = build()
        optimizer = ct.DistributedOptimizer(optimizer_of(model), comm=comm, bucket_bytes=300)
        under_way: list[int] = []
        model.words.weight.register_hook(lambda _: under_way.append(len(optimizer._flights)))
        for step in range(2):
            optimizer.zero_grad()
            loss(model, step, 0).backward()
            optimizer.step()
        optimizer.close()
        return under_way

    first, second = ranks(SIZE, body)[0]
    assert first == 0 and second > 3


def test_clipping_between_synchronize_and_step() -> None:
    def body(comm: Communicator) -> Any:
        model = build()
        optimizer = ct.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1.0), comm=comm)
        optimizer.zero_grad()
        loss(model, 0, comm.rank).backward()
        optimizer.synchronize()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.close()
        return norm, [p.detach() for p in model.parameters()]

    (norm, a), (other, b) = ranks(SIZE, body)
    assert norm == other and all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


def test_what_is_averaged_twice_is_warned_of() -> None:
    def body(comm: Communicator) -> None:
        model = torch.nn.Linear(2, 2)
        optimizer = ct.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1.0), comm=comm)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.synchronize()
        with pytest.warns(UserWarning, match="skip_synchronize"):
            optimizer.step()
        optimizer.close()

    ranks(1, body)


def test_it_is_still_the_optimizer_that_it_was() -> None:
    def body(comm: Communicator) -> None:
        model = build()
        optimizer = ct.DistributedOptimizer(optimizer_of(model), comm=comm)
        assert isinstance(optimizer, torch.optim.Adam) and type(optimizer).__name__ == "Adam"
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
        loss(model, 0, 0).backward()
        optimizer.step()
        schedule.step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)
        saved = optimizer.state_dict()
        fresh = torch.optim.Adam(build().parameters(), 0.5)
        fresh.load_state_dict(saved)
        assert fresh.param_groups[0]["lr"] == pytest.approx(0.001)
        with pytest.raises(TypeError, match="already"):
            ct.DistributedOptimizer(optimizer, comm=comm)
        with pytest.raises(ValueError, match="averaged or summed"):
            ct.DistributedOptimizer(optimizer_of(model), op="max", comm=comm)
        with pytest.raises(ValueError, match="twice: a"):
            ct.DistributedOptimizer(optimizer_of(model), [("a", p) for p in model.parameters()], comm=comm)
        with pytest.raises(ValueError, match="lacks"):
            ct.DistributedOptimizer(optimizer_of(model), [], comm=comm)
        with pytest.raises(ValueError, match="fp8"):
            ct.DistributedOptimizer(optimizer_of(model), compression="fp4", comm=comm)
        optimizer.close()

    ranks(SIZE, body)


def test_wrong_order_of_calls() -> None:
    def body(comm: Communicator) -> None:
        model = linear()
        optimizer = ct.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), comm=comm
        )
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        model(torch.ones(1, 4)).sum().backward()
        with pytest.raises(RuntimeError, match="zero_grad"):
            optimizer.zero_grad()
        with pytest.raises(RuntimeError, match="another gradient"):
            model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.set_backward_passes_per_step(2)
        for _ in range(2):
            model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.close()

    ranks(SIZE, body)


@pytest.mark.parametrize(
    ("shape", "text"),
    [((4, 3), r"'weight'.*ranks \[1\]"), (None, "rank 0 has 2, rank 1 has 1")],
    ids=["shape", "number"],
)
def test_different_models_are_found_out_at_the_first_step(shape: Any, text: str) -> None:
    def body(comm: Communicator) -> None:
        other = comm.rank == 1
        model = linear(shape if shape and other else (4, 2), bias=shape is not None or not other)
        optimizer = ct.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), comm=comm
        )
        model(torch.ones(1, 4)).sum().backward()
        try:
            optimizer.step()
        finally:
            optimizer.close()

    for outcome in outcomes(SIZE, body):
        with pytest.raises(DesyncError, match=text):
            _ = outcome.value


def test_a_rank_that_is_gone() -> None:
    def body(comm: Communicator) -> None:
        model = linear()
        optimizer = ct.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), comm=comm)
        for step in range(3):
            if comm.rank == 1 and step == 2:
                optimizer.close()
                return
            optimizer.zero_grad()
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()

    done = outcomes(SIZE, body)
    error = done[0].error
    assert isinstance(error, PeerLost) and error.ranks == (1,)


def test_models_are_averaged_every_so_many_steps() -> None:
    def body(comm: Communicator) -> list[float]:
        model = torch.nn.Linear(1, 1, bias=False)
        model.weight.data.fill_(0.0)
        averager = ct.ModelAverager(model, every=3, warmup=1, comm=comm)
        seen = []
        for _ in range(7):
            with torch.no_grad():
                model.weight += comm.rank + 1.0
            averager.step()
            seen.append(model.weight.item())
        averager.close()
        return seen

    assert ranks(SIZE, body) == [[1.5, 2.5, 3.5, 6.0, 7.0, 8.0, 10.5], [1.5, 3.5, 5.5, 6.0, 8.0, 10.0, 10.5]]
    with pytest.raises(ValueError, match="at least"):
        ct.ModelAverager([], every=0)


def test_local_steps_with_k_1_are_synchronous_ones() -> None:
    """SGD moves by a multiple of the gradient, so averaging models each step is averaging gradients."""

    def body(comm: Communicator) -> list[Any]:
        model = build()
        averager = ct.ModelAverager(model, comm=comm)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(4):
            optimizer.zero_grad()
            loss(model, step, comm.rank).backward()
            optimizer.step()
            averager.step()
        averager.close()
        return [p.detach() for p in model.parameters()]

    found = ranks(SIZE, body)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(4):
        optimizer.zero_grad()
        sum(loss(model, step, rank) / SIZE for rank in range(SIZE)).backward()
        optimizer.step()
    for a, b, w in zip(*found, model.parameters(), strict=True):
        assert torch.equal(a, b) and torch.allclose(a, w, atol=1e-6)
