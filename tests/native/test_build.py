"""Building without a compiler: the message names what to install."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CMAKE = shutil.which("cmake")


@pytest.mark.skipif(CMAKE is None, reason="cmake is not installed (make dev installs it)")
def test_a_missing_compiler_is_named_with_its_package(tmp_path: Path) -> None:
    assert CMAKE is not None
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("make", "ninja", "sh", "uname"):
        if (found := shutil.which(name)) is not None:
            (tools / name).symlink_to(found)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CXX", "CC", "CMAKE_", "CFLAGS"))}
    done = subprocess.run(
        [CMAKE, "-S", str(ROOT), "-B", str(tmp_path / "build")],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
        env={**kept, "PATH": str(tools)},
    )
    said = " ".join(done.stderr.split())
    assert done.returncode != 0
    assert "There is no C++ compiler" in said
    assert "apt-get install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora, RHEL)" in said
    assert "CMAKE_CXX_COMPILER" not in said  # CMake's own words, which name no package
