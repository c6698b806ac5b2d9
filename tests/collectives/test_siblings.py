"""A folder or file that hides one of our packages is named, whatever else it contains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collectives import siblings

ROOT = Path(siblings.__file__).parents[1]
CHECK = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("siblings", {siblings.__file__!r})
siblings = importlib.util.module_from_spec(spec)
spec.loader.exec_module(siblings)
siblings.require("native", "transports", "rendezvous")
"""


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    """The check in a fresh interpreter that looks into `folder` first, then for our packages."""
    code = f"import sys; sys.meta_path[:] = sys.meta_path[-3:]{CHECK}"  # without the finder of an editable install
    return subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=30,
    )


def test_our_own_packages_are_accepted() -> None:
    siblings.require("native", "transports", "rendezvous", "collectives", "bench")


@pytest.mark.parametrize("name", ["native", "rendezvous"])
def test_a_package_that_hides_ours_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("raise SystemExit('never imported')")
    result = check(tmp_path)
    assert result.returncode == 1
    assert f"ImportError: `import {name}` finds {tmp_path / name}, but" in result.stderr
    assert f"package {name!r} in {ROOT}" in result.stderr


def test_a_file_that_hides_ours_is_named(tmp_path: Path) -> None:
    (tmp_path / "transports.py").write_text("")
    assert f"finds {tmp_path / 'transports.py'}, but" in check(tmp_path).stderr


def test_a_folder_without_code_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "native").mkdir()
    assert check(tmp_path).returncode == 0


def test_a_missing_package_is_named() -> None:
    with pytest.raises(ImportError, match="lacks the package 'nowhere_to_be_found'"):
        siblings.require("nowhere_to_be_found")
