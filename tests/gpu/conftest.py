"""What the tests of this folder need: a CUDA device, CuPy and NCCL; some of them MPS, PyTorch, JAX or two devices."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from collectives.native import _engine
from collectives.native.errors import CollectiveError
from collectives.transports import nccl

# Without NVRTC no rank leads.
UNLED: Final = {"WORKER_DEVICE": "0", "COLLECTIVES_NVRTC": "/no/such/file"}
SHARED: Final = {**UNLED, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
_SHARES_FROM: Final = 23200
_CONTROL: Final = "nvidia-cuda-mps-control"


@pytest.fixture(autouse=True)
def _in_time() -> None:
    """Skips what has not begun in time; see tools/check_gpu.py."""
    if time.time() > float(os.environ.get("GPU_TESTS_UNTIL", "inf")):
        pytest.skip("not run: the time for a device is over")


@pytest.fixture(scope="session")
def device() -> str:
    """The name of device 0."""
    reason = _engine.why_no_cuda() or nccl.find().problem
    if reason:
        pytest.skip(f"needs a GPU: {reason}")
    try:
        found = _engine.cuda_devices()
    except CollectiveError as error:
        pytest.skip(f"needs a GPU: {error}")
    if not found:
        pytest.skip("needs a GPU: none is visible")
    pytest.importorskip("cupy", reason="needs CuPy")
    return str(found[0].name)


@pytest.fixture
def shared(device: str) -> dict[str, str]:
    """The environment of ranks that share a device by NCCL."""
    version = _engine.load_nccl(nccl.find().path).version
    if version < _SHARES_FROM:
        pytest.skip(f"needs NCCL 2.32, in which ranks may share a device; this is {version}")
    return SHARED


@pytest.fixture
def mps(device: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of processes that use MPS, which runs meanwhile; one test at a time has it.

    No setting of the device is changed.
    """
    if shutil.which(_CONTROL) is None:
        pytest.skip(f"needs MPS: {_CONTROL} is not in PATH")
    own = tmp_path_factory.getbasetemp()
    common = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    # The paths of sockets are short.
    with (common / "mps.lock").open("w") as lock, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        variables = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for path in variables.values():
            Path(path).mkdir()
        env = {**os.environ, **variables}
        subprocess.run([_CONTROL, "-d"], env=env, check=True, timeout=20)
        try:
            yield variables
        finally:
            subprocess.run([_CONTROL], env=env, input="quit\n", text=True, check=False, timeout=20)
