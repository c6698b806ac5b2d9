"""Prints the figures of docs/gpu.md from a real device. A figure beyond its bar is marked, and is no failure here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from tests.collectives.cuda.ranks import WORKER as CALLS
from tests.collectives.cuda.ranks import run, succeed
from tests.collectives.cuda.test_leading import WORKER
from tests.gpu.conftest import UNLED
from tests.gpu.test_arrays import WORKER as ARRAYS
from tests.launched import _HOME

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(270)]

HERE: Final = Path(__file__).parent
SHARING, COSTS, LOSSES = (str(HERE / f"{name}.py") for name in ("sharing", "costs", "losses"))
BENCH: Final = (
    *("-m", "collectives", "bench", "allreduce", "--device", "cuda", "-b", "8", "-e", "64M", "-f", "128"),
    *("--budget", "0.1", "--rounds", "3", "--limits", "--peers", "nccl,torch-nccl,cupy"),
)
TIMES: Final = "20"
SILENT: Final = 5, "4"  # so many pairs at the same time, each so often: an attempt takes 12 s
SANITIZER: Final = ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer")


def script(*arguments: str, more: Mapping[str, str] | None = None, limit: float = 150, copies: int = 1) -> None:
    """Run a script to its end, or `copies` of it at the same time; print what they print."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(_HOME), *sys.path]),
        "COLLECTIVES_CALIBRATE": "off",
        **(more or {}),
    }
    command = [sys.executable, *arguments]

    def one(_: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=limit, env=env)

    with ThreadPoolExecutor(copies) as pool:
        for done in pool.map(one, range(copies)):
            print(done.stdout)
            assert done.returncode == 0, done.stdout + done.stderr


def test_ranks_that_share_a_device(device: str) -> None:
    script(SHARING)


def test_the_cost_of_a_call(device: str) -> None:
    script(COSTS)


def test_the_cost_of_a_call_on_a_tensor(device: str) -> None:
    if find_spec("torch") is None:
        pytest.skip("needs torch")
    script(COSTS, "torch")


def test_a_rank_is_killed_again_and_again_under_a_leader(device: str) -> None:
    script(LOSSES, "leader", TIMES)


def test_a_rank_is_killed_again_and_again_in_nccl(shared: dict[str, str]) -> None:
    script(LOSSES, "nccl", TIMES, more=shared)


def test_the_benchmark(device: str) -> None:
    """Peers that cannot run, such as torch where its NCCL is older than 2.32, have a line with the reason."""
    script(*BENCH)


@pytest.mark.parametrize("by", ["leader", "NCCL", "staging"])
def test_memory_is_accessed_as_it_may_be(by: str, device: str, tmp_path: Path) -> None:
    """NCCL with one rank: two ranks that share a device need MPS, whose server the checker does not see."""
    found = next((path for path in SANITIZER if shutil.which(path)), None)
    if found is None:
        pytest.skip("needs compute-sanitizer, which comes with the CUDA toolkit")
    before = (found, "--tool", "memcheck", "--target-processes", "all", "--error-exitcode", "9")
    case, worker, size = {
        "leader": ("results", WORKER, 2),
        "NCCL": ("alone", CALLS, 1),
        "staging": ("staged_short", ARRAYS, 2),
    }[by]
    environment = {"WORKER_DEVICE": "0", "SHORT": "1", **(UNLED if by == "NCCL" else {})}
    ended = run(case, tmp_path, environment, size, worker=worker, limit=150, before=before)
    for one in ended:
        print(one.output[-2000:])
    succeed(ended)
    assert all("ERROR SUMMARY: 0 errors" in one.output for one in ended), [one.output[-2000:] for one in ended]


def test_ranks_that_share_a_device_under_mps(mps: dict[str, str]) -> None:
    script(SHARING, "--mps", more=mps)


def test_the_benchmark_under_mps(mps: dict[str, str]) -> None:
    script(*BENCH, more=mps)


def test_a_rank_falls_silent_again_and_again(shared: dict[str, str]) -> None:
    """Several pairs at the same time, under a leader and in NCCL, since each attempt takes the twelve seconds."""
    pairs, times = SILENT
    with ThreadPoolExecutor(2) as pool:
        led = pool.submit(script, LOSSES, "leader", times, "--silent", limit=200, copies=pairs)
        script(LOSSES, "nccl", times, "--silent", more=shared, limit=200, copies=pairs)
        led.result()
