"""The stand-ins for the CUDA driver and NCCL, built once for all tests that need them, by the first process."""

from __future__ import annotations

import fcntl
import os

import pytest

from tests.stand_in.build import StandIn, build, compiler


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    if compiler() is None:
        pytest.skip("needs a C++ compiler, to build the stand-ins for the CUDA driver and NCCL")
    own = tmp_path_factory.getbasetemp()
    common = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder, built = common / "stand_in", common / "stand_in.built"
    with (common / "stand_in.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            build(folder)
            built.touch()
    return StandIn(folder)
