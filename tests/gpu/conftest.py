"""What the tests of this folder need: a CUDA device, CuPy and NCCL."""

from __future__ import annotations

import pytest

from collectives.native import _engine
from collectives.native.errors import CollectiveError
from collectives.transports import nccl


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
