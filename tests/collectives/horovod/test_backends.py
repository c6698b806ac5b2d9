"""Horovod's API of Keras on PyTorch and JAX, with two processes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.collectives.horovod.results import Results
from tests.lazily import needs
from tests.warm.parents import KERAS, QUICK_XLA

needs("keras", "pip install keras tensorflow")

# Processes import large frameworks, and machines that run tests may have other things to do.
pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_another_backend_than_tensorflow(backend: str) -> None:
    needs(backend, f"pip install {backend}")
    flags: dict[str, Any] = {"XLA_FLAGS": QUICK_XLA} if backend == "jax" else {}
    results = Results(2, "worker_backends.py", warm=KERAS, KERAS_BACKEND=backend, **flags)
    assert results.same("backend") == [backend, False]
    average = [1.5, -6.0, 9.0]
    assert results.same("values") == [average, average, [2.0, -8.0, 12.0], [1.0, -4.0, 6.0, 2.0, -8.0, 12.0]]
    (mine, losses), (theirs, same_losses) = results["training"]
    assert losses == same_losses
    assert mine == [[-3.0, 12.0], [-1.0, 4.0]] and theirs == [[-3.0, 12.0], [-2.0, 8.0]]
