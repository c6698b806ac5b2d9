"""Tests that failed beside others run once more, alone; what fails alone, too, fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.again import MOST

ROOT = Path(__file__).resolve().parent.parent
FLAKE = """
import os
def test_flake_{0}():
    assert "PYTEST_XDIST_WORKER" not in os.environ, "it runs beside others"
"""
GOOD = """
def test_good():
    pass
"""
BAD = """
def test_bad():
    assert 1 + 1 == 3
"""
SKIPS = """
import os, pytest
def test_skips():
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("not alone")
    assert False, "it runs beside others"
"""
BROKEN_AT_ITS_END = """
import os, pytest
@pytest.fixture
def ends():
    yield
    assert "PYTEST_XDIST_WORKER" not in os.environ, "it ends beside others"
def test_ends(ends):
    pass
"""


def run(folder: Path, *contents: str) -> tuple[int, str]:
    """Exit code and output of two workers that run these tests."""
    (folder / "conftest.py").write_text('pytest_plugins = ["tests.again"]\n')
    (folder / "test_it.py").write_text("".join(contents))
    command = [sys.executable, "-m", "pytest", "--again", "-n", "2", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    settings = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    settings["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout + done.stderr


def test_what_passes_alone_is_printed_and_counted(tmp_path: Path) -> None:
    code, output = run(tmp_path, GOOD, FLAKE.format(1), BROKEN_AT_ITS_END)
    assert code == 0, output
    assert "it runs beside others" in output and "it ends beside others" in output
    line = "2 tests failed beside the others and passed alone: "
    assert line + "test_it.py::test_ends, test_it.py::test_flake_1" in output.replace(
        "test_it.py::test_flake_1, test_it.py::test_ends", "test_it.py::test_ends, test_it.py::test_flake_1"
    )
    assert "3 passed, 2 rerun alone in " in output.splitlines()[-1]


def test_what_fails_or_skips_alone_fails_the_run(tmp_path: Path) -> None:
    code, output = run(tmp_path, GOOD, FLAKE.format(1), BAD, SKIPS)
    assert code == 1, output
    assert "1 tests failed beside the others and passed alone: test_it.py::test_flake_1" in output
    assert "2 failed, 2 passed, 1 rerun alone in " in output.splitlines()[-1]


def test_many_are_not_run_again(tmp_path: Path) -> None:
    code, output = run(tmp_path, *(FLAKE.format(i) for i in range(MOST + 1)))
    assert code == 1, output
    assert f"{MOST + 1} tests failed; at most {MOST} are run once more" in output
    assert f"{MOST + 1} failed in " in output.splitlines()[-1]
