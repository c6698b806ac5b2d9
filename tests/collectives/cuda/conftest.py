"""The stand-ins for the CUDA driver and NCCL, built once for the tests of this folder."""

from __future__ import annotations

import pytest

from tests.stand_in.build import StandIn, build, compiler


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    if compiler() is None:
        pytest.skip("needs a C++ compiler, to build the stand-ins for the CUDA driver and NCCL")
    return build(tmp_path_factory.mktemp("stand_in"))
