"""The leader form, for ranks that share a CUDA device: whether this process can use it, and where NVRTC is.

Invariant: nothing here loads NVRTC or initialises the CUDA driver.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from collectives.native import _engine
from collectives.transports.devices import why_no_device

VARIABLE: Final = "COLLECTIVES_NVRTC"
_WHEELS: Final = ("nvidia.cu13", "nvidia.cuda_nvrtc")  # those of CUDA 13, and of CUDA 12
_FILES: Final = {13: "libnvrtc.so.13", 12: "libnvrtc.so.12"}  # by the oldest version of CUDA that its code needs
_CURE: Final = 'install it, pip install "pycollectives[cuda12]" or "[cuda13]"'


class Compiler(NamedTuple):
    """NVIDIA's run-time compiler, libnvrtc: its path, or a name that the loader finds.

    `problem`: why no such library can be used, or "".
    """

    path: str = ""
    problem: str = ""


def find_compiler(env: Mapping[str, str] = os.environ) -> Compiler:
    """Find NVRTC, NVIDIA's run-time compiler, for this process. Never raises."""
    wanted = env.get(VARIABLE, "")
    if wanted:
        if not os.path.isabs(wanted) or not os.path.isfile(wanted):
            return Compiler(problem=f"{VARIABLE} is {wanted!r}, which is not the absolute path of a file: correct it")
        return Compiler(wanted)
    driver = _engine.cuda_driver()[1]
    usable = [name for major, name in _FILES.items() if not driver or driver >= 1000 * major]
    for package in _WHEELS:
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            continue
        for folder in (spec and spec.submodule_search_locations) or ():
            for name in usable:
                path = Path(folder, "lib", name)
                if path.is_file():
                    return Compiler(str(path))
    found = ctypes.util.find_library("nvrtc")
    if found in usable:
        return Compiler(str(found))
    return Compiler(problem=f"NVRTC, which compiles the kernels, is not installed: {_CURE}")


def mps(env: Mapping[str, str] = os.environ) -> str:
    """Whether NVIDIA's Multi-Process Service runs, by which ranks that share a device run at the same time; or what it
    would bring."""
    pipes = Path(env.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps")
    if (pipes / "control").exists():
        return f"its control pipe is in {pipes}; a rank that dies under it may take its neighbours along"
    there = "" if shutil.which("nvidia-cuda-mps-control") else ", and nvidia-cuda-mps-control is not in PATH"
    return (
        f"no control pipe in {pipes}{there}; kernels of ranks that share a device take turns, which costs 0.14 ms each "
        "time. MPS lets them run at the same time, but a rank that dies under it may take its neighbours along"
    )


class Leader:
    """Implements `transports.library.Library`."""

    @property
    def scheme(self) -> str:
        return "leader"

    def available(self) -> str | None:
        return why_no_device() or find_compiler().problem or None

    def published(self) -> Sequence[str]:
        return ("1",)  # the version of what ranks exchange to form the engine
