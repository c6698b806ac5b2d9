"""Builds the stand-ins for the CUDA driver and for NCCL, and the environment in which processes find them.

Invariant: the stand-ins are found by the processes that get this environment, and by no others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).parent


class StandIn(NamedTuple):
    """Where the stand-ins are."""

    folder: Path

    @property
    def nccl(self) -> Path:
        return self.folder / "libnccl.so.2"

    def environment(self, files: Path, nccl: Path | None = None) -> dict[str, str]:
        """For ranks; `files`: a folder in which the stand-in for NCCL keeps its files meanwhile."""
        return {
            "LD_LIBRARY_PATH": str(self.folder),
            "COLLECTIVES_NCCL": str(nccl or self.nccl),
            "STAND_IN_FOLDER": str(files),
            "STAND_IN_MODULES": str(HERE / "modules"),
        }


def compiler() -> str | None:
    return os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")


def build(folder: Path) -> StandIn:
    """The stand-ins, built in `folder`."""
    _compile(HERE / "cuda.cpp", folder / "libcuda.so.1")
    build_nccl(folder, folder / "libnccl.so.2")
    return StandIn(folder)


def build_nccl(driver: Path, target: Path, *defines: str) -> Path:
    """A stand-in for NCCL at `target`, with `defines`, such as STAND_IN_VERSION=21703."""
    flags = [f"-D{define}" for define in defines]
    _compile(HERE / "nccl.cpp", target, *flags, f"-L{driver}", "-l:libcuda.so.1")
    return target


def _compile(source: Path, target: Path, *flags: str) -> None:
    chosen = compiler()
    assert chosen is not None
    target.parent.mkdir(parents=True, exist_ok=True)
    command = [chosen, "-std=c++20", "-O1", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"]
    # Without a name of its own inside, as other files have it: so that each path is another library.
    name = f"-Wl,-soname,{target.name}"
    command += [name, str(source), "-o", str(target), *flags]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
