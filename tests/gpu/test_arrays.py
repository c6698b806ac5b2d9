"""Arrays of PyTorch and JAX, streams, threads as ranks and forked helpers, on a real device."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from tests.collectives.cuda.ranks import run, succeed

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(270)]

WORKER: Final = Path(__file__).with_name("worker.py")
# XLA would take three quarters of the device's memory.
JAX: Final = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def needs(module: str) -> None:
    if find_spec(module) is None:
        pytest.skip(f"needs {module}")


@pytest.mark.parametrize("size", [2, 4])
def test_staging(size: int, device: str, tmp_path: Path) -> None:
    succeed(run("staged", tmp_path, {}, size, worker=WORKER))


def test_streams(device: str, tmp_path: Path) -> None:
    succeed(run("streams", tmp_path, {}, worker=WORKER))


def test_torch(device: str, tmp_path: Path) -> None:
    needs("torch")
    succeed(run("torch_arrays loader", tmp_path, {}, worker=WORKER, limit=90))


def test_jax(device: str, tmp_path: Path) -> None:
    needs("jax")
    succeed(run("jax_arrays jax_compiled", tmp_path, JAX, worker=WORKER, limit=90))


def test_copies_by_the_driver(device: str, tmp_path: Path) -> None:
    needs("jax")
    succeed(run("copied_arrays", tmp_path, JAX, worker=WORKER, limit=90))


def test_tensorflow(device: str, tmp_path: Path) -> None:
    needs("tensorflow")
    succeed(run("tensorflow_arrays", tmp_path, {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, worker=WORKER, limit=90))


def test_arrays_that_are_dropped(device: str, tmp_path: Path) -> None:
    needs("torch")
    succeed(run("dropped", tmp_path, {}, worker=WORKER, limit=90))


def test_helpers_that_are_forked(device: str, tmp_path: Path) -> None:
    succeed(run("forked", tmp_path, {"WORKER_DEVICE": "0"}))


def test_ranks_that_are_threads(device: str, tmp_path: Path) -> None:
    """Prints which engine ran, and on how many devices."""
    ended = run("threads", tmp_path, {}, 1)
    print(ended[0].output)
    succeed(ended)


def test_streams_by_nccl(shared: dict[str, str], mps: dict[str, str], tmp_path: Path) -> None:
    succeed(run("streams", tmp_path, {**shared, **mps, "TRANSPORT": "nccl"}, worker=WORKER))


def test_torch_by_nccl(shared: dict[str, str], mps: dict[str, str], tmp_path: Path) -> None:
    needs("torch")
    succeed(run("torch_arrays", tmp_path, {**shared, **mps, "TRANSPORT": "nccl"}, worker=WORKER))
