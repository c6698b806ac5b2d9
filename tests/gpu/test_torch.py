"""torch.distributed on CUDA tensors of a real device, with the backend of this library."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from collectives.transports import nccl
from tests.launched import _HOME

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(270)]

WORKER: Final = Path(__file__).with_name("torch_worker.py")
OURS: Final = "cpu:collectives,cuda:collectives"
CLOSE: Final = 1e-5


@pytest.fixture(autouse=True)
def torch(device: str) -> None:
    for module in ("torch", "sklearn"):
        if find_spec(module) is None:
            pytest.skip(f"needs {module}")


def ranks(folder: Path, *arguments: str, more: Mapping[str, str] | None = None, size: int = 2) -> None:
    """Run the worker on `size` ranks; it has to succeed."""
    folder.mkdir(exist_ok=True)
    common = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(_HOME), *sys.path]),
        "STORE": str(folder / "store"),
        "WORLD_SIZE": str(size),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        **(more or {}),
    }
    outputs = [folder / f"output-{rank}" for rank in range(size)]
    running = []
    try:
        for rank, output in enumerate(outputs):
            with output.open("w") as file:
                running.append(
                    subprocess.Popen(
                        [sys.executable, str(WORKER), *arguments],
                        env={**common, "RANK": str(rank)},
                        stdout=file,
                        stderr=file,
                    )
                )
        for one in running:
            one.wait(90)
    finally:
        for one in running:
            one.kill()
            one.wait()
    texts = "\n".join(f"[{rank}] {output.read_text()}" for rank, output in enumerate(outputs))
    assert [one.returncode for one in running] == [0] * size, texts


def test_messages_and_collectives(tmp_path: Path) -> None:
    ranks(tmp_path, "messages")


def test_messages_by_nccl(shared: dict[str, str], mps: dict[str, str], tmp_path: Path) -> None:
    variables = {**shared, **mps, "LD_PRELOAD": nccl.find().path, "COLLECTIVES_TORCH_MESSAGES": "nccl"}
    ranks(tmp_path, "by_nccl", more=variables)


def test_fully_shard(tmp_path: Path) -> None:
    ranks(tmp_path, "sharded")


def test_ddp_becomes_what_it_becomes_with_nccl_and_on_the_cpu(
    shared: dict[str, str], mps: dict[str, str], tmp_path: Path
) -> None:
    """Two ranks share the device: bit for bit as with NCCL under MPS, and to the CPU's weights within 1e-5."""
    preloaded = {**mps, "NCCL_MULTI_RANK_GPU_ENABLE": "1", "LD_PRELOAD": nccl.find().path}
    for name, backend, kind, more in (
        ("ours", OURS, "cuda", mps),
        ("nccl", "nccl", "cuda", preloaded),
        ("cpu", OURS, "cpu", {}),
    ):
        ranks(tmp_path / name, "train", backend, kind, str(tmp_path / f"{name}.npy"), more=more)
    ours, theirs, cpu = (np.load(tmp_path / f"{name}.npy") for name in ("ours", "nccl", "cpu"))
    off = float(np.abs(ours - cpu).max())
    print(f"bits as with NCCL: {ours.tobytes() == theirs.tobytes()}; off the CPU's weights by at most {off:.1e}")
    assert ours.tobytes() == theirs.tobytes()
    assert off <= CLOSE
