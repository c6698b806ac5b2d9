"""Training with gradients in 8 bits: as accurate as with float32, and the same weights on every rank."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from collectives.arrays.wire import format_of
from collectives.core.communicator import Communicator
from collectives.schedule.table import parse
from tests.collectives.groups import ranks
from tests.lazily import needs

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
needs("sklearn", "the digits: pip install scikit-learn")

from sklearn.datasets import load_digits  # noqa: E402

import collectives.torch as ct  # noqa: E402

SIZE, BATCH, EPOCHS, SEEDS = 3, 32, 8, 5
_one_at_a_time = threading.Lock()


def data() -> tuple[Any, Any, int]:
    """Pixels and digits in random order, and the number of those to train with."""
    pixels, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(1).permutation(len(digits))
    x, y = (pixels[order] / 16).astype(np.float32), digits[order]
    return torch.from_numpy(x), torch.from_numpy(y), len(digits) * 4 // 5


def network(seed: int) -> Any:
    with _one_at_a_time:  # threads share torch's generator
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.Tanh(), torch.nn.Linear(48, 10))


def trained(comm: Communicator, seed: int, compression: str | None, epochs: int = EPOCHS) -> tuple[bytes, float]:
    """The weights, and the accuracy on digits that were not used for training."""
    x, y, split = data()
    model = network(seed)
    optimizer = ct.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        model.named_parameters(),
        compression,
        comm=comm,
        error_feedback=compression is not None,
    )
    order = np.random.default_rng(seed)
    for _ in range(epochs):
        for batch in np.array_split(order.permutation(split), split // (BATCH * SIZE)):
            mine = torch.from_numpy(batch[comm.rank :: SIZE])
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[mine]), y[mine]).backward()
            optimizer.step()
    optimizer.close()
    with torch.no_grad():
        found = (model(x[split:]).argmax(1) == y[split:]).float().mean().item()
    return b"".join(p.detach().numpy().tobytes() for p in model.parameters()), found


@pytest.mark.timeout(300)
def test_digits_end_as_accurate_as_with_float32() -> None:
    def body(comm: Communicator) -> dict[str | None, list[tuple[bytes, float]]]:
        ways: tuple[str | None, ...] = (None, "int8")
        return {way: [trained(comm, seed, way) for seed in range(SEEDS)] for way in ways}

    results = ranks(SIZE, body)
    for other in results[1:]:
        assert other == results[0]  # bit for bit
    means = {way: np.mean([accuracy for _, accuracy in runs]) for way, runs in results[0].items()}
    assert means[None] > 0.93, means
    assert results[0]["int8"][0][0] != results[0][None][0][0]
    assert means["int8"] > means[None] - 0.005, means


def test_auto_trains_as_the_format_that_the_table_names() -> None:
    def body(comm: Communicator) -> list[bytes]:
        return [trained(comm, 0, way, epochs=1)[0] for way in ("auto", "int8", None)]

    first, second = ranks(2, body)
    assert first == second and first[0] == first[2] != first[1]
    first, second = ranks(2, body, table=parse("allreduce any any any int8 wire=auto"))
    assert first == second and first[0] == first[1] != first[2]


def test_error_feedback_loses_nothing() -> None:
    """A gradient that is far smaller than the step of its block arrives in the end."""
    compression = ct.Compression("int8", error_feedback=True)
    gradient = torch.full((256,), 0.001)
    gradient[0] = 1.0
    form = format_of("int8")
    total = np.zeros(256)
    for _ in range(1000):
        sent = compression.compress(gradient, 0)
        assert compression.wire(sent) == "int8"
        total += form.rounded(sent.numpy())
    assert abs(total[1:] - 1.0).max() < 0.01 and abs(total[0] - 1000) < 0.01
    assert (form.rounded(gradient.numpy())[1:] == 0).all()


def test_float64_gradients_are_sent_in_8_bits_and_integers_are_not_converted() -> None:
    compression = ct.Compression("fp8", error_feedback=True)
    wide = torch.linspace(-1, 1, 300, dtype=torch.float64).reshape(20, 15).T
    sent = compression.compress(wide, "a")
    assert sent.dtype == torch.float32 and sent.is_contiguous() and compression.wire(sent) == "fp8"
    whole = torch.arange(3)
    assert compression.compress(whole, "b") is whole and compression.wire(whole) is None
    assert ct.Compression("bf16").wire(ct.Compression("bf16").compress(wide)) is None
