"""The embedding example: as accurate with gradients in fewer bytes as with float32, and the same weights on every rank.

With COLLECTIVES_TESTS=long, all formats are compared, each with five seeds.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives.core.communicator import Communicator
from tests.collectives.groups import ranks
from tests.depth import LONG
from tests.launched import launched
from tests.warm.parents import TORCH

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

EXAMPLE = Path(__file__).parents[3] / "examples" / "embedding_torch.py"
SIZE = 2
SEEDS = 5 if LONG else 2
FORMATS = ("bf16", "fp16", "fp8", "int8") if LONG else ("int8",)


def example() -> Any:
    spec = importlib.util.spec_from_file_location("embedding_torch", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(600)
def test_embeddings_end_as_accurate_as_with_float32() -> None:
    module = example()
    samples = module.load()

    def body(comm: Communicator) -> dict[str | None, list[tuple[bytes, float]]]:
        def trained(seed: int, compression: str | None) -> tuple[bytes, float]:
            model = module.train(comm, samples, seed, compression)
            return module.weights(model).tobytes(), module.accuracy(model, samples)

        return {way: [trained(seed, way) for seed in range(SEEDS)] for way in (None, *FORMATS)}

    results = ranks(SIZE, body, timeout=300.0)
    for other in results[1:]:
        assert other == results[0]  # bit for bit
    means = {way: float(np.mean([accuracy for _, accuracy in runs])) for way, runs in results[0].items()}
    print(means)
    assert means[None] > module.WANTED, means
    for way in FORMATS:
        assert results[0][way][0][0] != results[0][None][0][0]
        assert means[way] > means[None] - 0.005, means


def test_the_example() -> None:
    done = launched(2, EXAMPLE, warm=TORCH, OMP_NUM_THREADS="1").succeeded()
    assert any("weights: the same bits on 2 ranks" in line for line in done.lines[0]), done.stdout
    found = re.search(r"names never seen before: ([\d.]+)% recognised, gradients sent as int8", done.stdout)
    assert found is not None and float(found[1]) >= 90, done.stdout
    assert not done.lines[1]  # one rank tells it
