"""The C++ tests that need two devices, or the headers of rdma-core."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "build" / "native-release" / "tests" / "native" / "native_tests"


def said_by(files: str) -> str:
    """What the C++ tests of these files say, all of which pass."""
    if not PROGRAM.exists():
        pytest.skip("the C++ tests are not compiled: `make test-verbs` compiles them")
    command = [str(PROGRAM), "--no-colors=true", f"--source-file={files}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and re.search("test cases: +[1-9]", said), said
    return said


@pytest.mark.timeout(300)
def test_links_between_two_devices() -> None:
    said = said_by("*/test_verbs_*.cpp")
    assert "skipped:" not in said, said


def test_declarations_are_compared_with_those_of_rdma_core() -> None:
    if not Path("/usr/include/infiniband/verbs.h").exists():
        pytest.skip("the headers of rdma-core are not installed: apt-get install libibverbs-dev")
    said = said_by("*/test_abi.cpp")
    assert "skipped:" not in said, said
