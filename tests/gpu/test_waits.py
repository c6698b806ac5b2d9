"""Every wait of the leader form is needed: a build that leaves one out gives wrong results where a rank is late."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from collectives.transports.leader import find_compiler
from tests.collectives.cuda.ranks import run, succeed
from tests.collectives.cuda.test_leading import WORKER

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

ROOT: Final = Path(__file__).parents[2]
FRESH: Final = ("env",)  # a new interpreter: those that were started before have the usual build


@pytest.fixture(scope="module")
def engine(device: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The extension, built so that it leaves out the wait that LEFT_OUT_WAIT names; see native/src/leader/waits.hpp."""
    problem = find_compiler().problem
    if problem:
        pytest.skip(f"needs NVRTC: {problem}")
    return built(tmp_path_factory.mktemp("waits"))


def built(folder: Path) -> str:
    options = ("BUILD_TYPE=Debug", "CXX_FLAGS_DEBUG=-O1")
    definitions = [f"-DCMAKE_{option}" for option in options]
    definitions += [f"-DPython_EXECUTABLE={sys.executable}", "-DCOLLECTIVES_LEFT_OUT_WAITS=ON"]
    definitions += ["-DCOLLECTIVES_MODULE=ON"]
    build = ("cmake", "--build", str(folder), "--target", "_engine", "-j", str(os.cpu_count()))
    for command in (("cmake", "-S", str(ROOT), "-B", str(folder), *definitions), build):
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (found,) = folder.glob("_engine*.so")
    return str(found)


@pytest.mark.parametrize("case", ["delayed", "graphs"])
def test_the_build_itself(case: str, engine: str, tmp_path: Path) -> None:
    environment = {"WORKER_DEVICE": "0", "ENGINE": engine}
    succeed(run(case, tmp_path, environment, worker=WORKER, limit=90, before=FRESH))


@pytest.mark.parametrize(
    ("case", "wait"), [("delayed", "call"), ("delayed", "kernel"), ("graphs", "graph"), ("graphs", "leader's graph")]
)
def test_no_wait_is_superfluous(case: str, wait: str, engine: str, tmp_path: Path) -> None:
    environment = {"WORKER_DEVICE": "0", "ENGINE": engine, "LEFT_OUT_WAIT": wait}
    ended = run(case, tmp_path, environment, worker=WORKER, limit=90, before=FRESH)
    assert any("AssertionError" in one.output for one in ended), [one.output for one in ended]
