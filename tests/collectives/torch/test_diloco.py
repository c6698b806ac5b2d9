"""DiLoCo: an outer step is a step of the outer optimizer with the ranks' average move."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from collectives.arrays.wire import WireName
from collectives.core.communicator import Communicator
from tests.collectives.groups import outcomes, ranks

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import collectives.torch as ct  # noqa: E402

SIZE = 2
STEPS = 6
_one_at_a_time = threading.Lock()  # ranks are threads, and torch's seed is the process's


def build(seed: int = 0) -> Any:
    with _one_at_a_time:
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3))


def loss(model: Any, step: int, rank: int) -> Any:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(12, 8, generator=generator)
    return ((model[2](torch.tanh(model[0](x))) - x[:, :3]) ** 2).mean()


def train(comm: Communicator, every: int, outer: Any, wire: WireName | None = None) -> tuple[list[Any], list[bool]]:
    model = build(comm.rank)  # the constructor broadcasts rank 0's
    diloco = ct.DiLoCo(model, every, outer, wire=wire, comm=comm)
    inner = torch.optim.SGD(model.parameters(), 0.1)
    done = []
    for step in range(STEPS):
        inner.zero_grad()
        loss(model, step, comm.rank).backward()
        inner.step()
        done.append(diloco.step())
    diloco.close()
    return [p.detach() for p in model.parameters()], done


def nesterov(rate: float) -> Any:
    return partial(torch.optim.SGD, lr=rate, momentum=0.9, nesterov=True)


def synchronous() -> list[Any]:
    model = build()
    optimizer = nesterov(0.1)(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        sum(loss(model, step, rank) / SIZE for rank in range(SIZE)).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("wire", [None, "bf16", "int8"])
def test_momentum_outside_is_momentum_on_averaged_gradients(wire: WireName | None) -> None:
    """If each rank makes one step of plain SGD, its move is a multiple of its gradient."""
    found = ranks(SIZE, lambda comm: train(comm, 1, nesterov(1.0), wire)[0])
    moved = max(float((a.detach() - b).abs().max()) for a, b in zip(build().parameters(), synchronous(), strict=True))
    for mine, theirs, wanted in zip(*found, synchronous(), strict=True):
        assert torch.equal(mine, theirs)
        assert float((mine - wanted).abs().max()) < (1e-6 if wire is None else 0.02 * moved)


def test_a_learning_rate_of_1_averages_the_models() -> None:
    def alone(rank: int) -> list[Any]:
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss(model, step, rank).backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    found = ranks(SIZE, lambda comm: train(comm, STEPS, partial(torch.optim.SGD, lr=1.0)))
    assert [done for _, done in found] == [[False] * (STEPS - 1) + [True]] * SIZE
    for mine, first, second in zip(found[0][0], alone(0), alone(1), strict=True):
        assert torch.allclose(mine, (first + second) / 2, atol=1e-6)


def test_the_default_is_the_papers() -> None:
    default = ranks(SIZE, lambda comm: train(comm, 2, None)[0])
    named = ranks(SIZE, lambda comm: train(comm, 2, nesterov(0.7))[0])
    for mine, theirs in zip(default[0], named[1], strict=True):
        assert torch.equal(mine, theirs)


def test_buffers_are_averaged() -> None:
    def body(comm: Communicator) -> Any:
        model = build()
        diloco = ct.DiLoCo(model, 1, comm=comm)
        model[1].running_mean.fill_(comm.rank + 1.0)
        assert diloco.step()
        diloco.close()
        return model[1].running_mean.tolist()

    assert ranks(SIZE, body) == [[1.5] * 16] * SIZE


def test_training_goes_on_from_a_checkpoint() -> None:
    def body(comm: Communicator, stop: bool) -> list[Any]:
        model = build()
        diloco = ct.DiLoCo(model, 2, comm=comm)
        inner = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(STEPS):
            if stop and step == 3:  # in the middle of two outer steps
                kept = diloco.state_dict(), {name: t.clone() for name, t in model.state_dict().items()}
                diloco.close()
                model = build(7)
                diloco = ct.DiLoCo(model, 2, comm=comm)
                diloco.load_state_dict(kept[0])
                model.load_state_dict(kept[1])
                inner = torch.optim.SGD(model.parameters(), 0.1)
            inner.zero_grad()
            loss(model, step, comm.rank).backward()
            inner.step()
            diloco.step()
        diloco.close()
        return [p.detach() for p in model.parameters()]

    straight = ranks(SIZE, lambda comm: body(comm, False))
    resumed = ranks(SIZE, lambda comm: body(comm, True))
    for a, b in zip(straight[0], resumed[0], strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"every": 0}, ValueError, "at least 1"),
        ({"every": 1, "wire": "int4"}, ValueError, "wire is 'int4'"),
        ({"every": 1, "model": torch.nn.Linear(2, 2).double(), "wire": "int8"}, TypeError, "weight is torch.float64"),
        ({"every": 1, "model": torch.nn.Linear(2, 2).requires_grad_(False)}, ValueError, "no parameter"),
    ],
)
def test_what_is_refused(options: dict[str, Any], error: type[Exception], says: str) -> None:
    def body(comm: Communicator) -> None:
        ct.DiLoCo(**{"model": build(), "comm": comm, **options})

    for done in outcomes(SIZE, body):
        assert isinstance(done.error, error) and says in str(done.error)
