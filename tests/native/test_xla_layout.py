"""What this library declares of XLA's interface is what jaxlib's own header says, by its compiler's word."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def test_the_declarations_are_those_of_the_installed_jaxlib() -> None:
    jax_ffi = pytest.importorskip("jax.ffi", reason="JAX is not installed: pip install jax")
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler: apt-get install g++")
    command = [compiler, "-std=c++20", "-fsyntax-only", f"-I{jax_ffi.include_dir()}", f"-I{HERE.parents[1]}/native/src"]
    done = subprocess.run(
        [*command, str(HERE / "xla_layout.cpp")], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
