"""The C++ tests of links that need two devices."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "build" / "native-release" / "tests" / "native" / "native_tests"


@pytest.mark.timeout(300)
def test_links_between_two_devices() -> None:
    if not PROGRAM.exists():
        pytest.skip("the C++ tests are not compiled: `make test-verbs` compiles them")
    done = subprocess.run(
        [PROGRAM, "--no-colors=true", "--source-file=*/test_verbs_*.cpp"],
        check=False,
        capture_output=True,
        text=True,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0 and re.search("test cases: +[1-9]", said) and "skipped:" not in said, said
