"""Builds the stand-ins for the CUDA driver, NVRTC and NCCL, and the environment in which processes find them.

Invariant: the stand-ins are found by the processes that get this environment, and by no others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).parent
_SOURCE: Final = HERE.parents[1] / "native" / "src"


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
            "COLLECTIVES_NVRTC": str(self.folder / "libnvrtc.so.12"),
            "STAND_IN_FOLDER": str(files),
            "STAND_IN_PEERS": "0",
            "CUDA_VISIBLE_DEVICES": "0",  # whatever it is here; the stand-in for the driver shows all
            "STAND_IN_MODULES": str(HERE / "modules"),
        }


def compiler() -> str | None:
    return os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")


def build(folder: Path) -> StandIn:
    """The stand-ins, built in `folder`."""
    kernels = f'-DSTAND_IN_KERNELS="{_SOURCE}/cuda/kernels.cu"'
    parts = {name: folder / f"{name}.o" for name in ("cuda", "memory", "kernels")}
    flags = ("-c", f"-I{_SOURCE}", "-ffp-contract=off", kernels)
    with ThreadPoolExecutor() as pool:  # each waits for a compiler
        objects = [pool.submit(_compile, [HERE / f"{name}.cpp"], part, *flags) for name, part in parts.items()]
        compiler_of_kernels = pool.submit(_compile, [HERE / "nvrtc.cpp"], folder / "libnvrtc.so.12")
        for one in (*objects, compiler_of_kernels):
            one.result()
    _compile(list(parts.values()), folder / "libcuda.so.1")
    build_nccl(folder, folder / "libnccl.so.2")
    return StandIn(folder)


def build_nccl(driver: Path, target: Path, *defines: str) -> Path:
    """A stand-in for NCCL at `target`, with `defines`, such as STAND_IN_VERSION=21703."""
    flags = [f"-D{define}" for define in defines]
    # As one file, since most of the time goes to the headers.
    target.parent.mkdir(parents=True, exist_ok=True)
    whole = target.with_suffix(".cpp")
    whole.write_text("".join(f'#include "{source}"\n' for source in sorted((HERE / "nccl").glob("*.cpp"))))
    _compile([whole], target, *flags, f"-L{driver}", "-l:libcuda.so.1")
    return target


def older_nccl(stand_in: StandIn, version: int) -> Path:
    """A stand-in that claims to be that old version of NCCL, and lacks what only later ones have; built once."""
    target = stand_in.folder / str(version) / "libnccl.so.2"
    if not target.exists():
        build_nccl(stand_in.folder, target, f"STAND_IN_VERSION={version}", "STAND_IN_OLD")
    return target


def _compile(sources: Sequence[Path], target: Path, *flags: str) -> None:
    chosen = compiler()
    assert chosen is not None
    target.parent.mkdir(parents=True, exist_ok=True)
    command = [chosen, "-std=c++20", "-O1", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"]
    # Without a name of its own inside, as other files have it: so that each path is another library.
    name = f"-Wl,-soname,{target.name}"
    command += [name, *map(str, sources), "-o", str(target), *flags]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
