"""NCCL: where its shared object is, and whether this process can use it.

Invariant: nothing here loads NCCL or initialises the CUDA driver. The libnccl that is found is the only one that this
process uses: the one that another library has loaded, or else the one of the setting, or else that of NVIDIA's wheel.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from collectives.native import _engine
from collectives.native.errors import ConfigMismatch
from collectives.transports.devices import why_no_device

VARIABLE: Final = "COLLECTIVES_NCCL"
_WHEELS: Final = {"nvidia-nccl-cu13": 13000, "nvidia-nccl-cu12": 12000}  # the oldest driver that each works with
_FILE: Final = "libnccl.so.2"
_CURE: Final = 'install a wheel of NCCL, pip install "pycollectives[cuda12]" or "[cuda13]"'


class Found(NamedTuple):
    """A libnccl: its absolute path, and where the path comes from. `problem`: why it cannot be used, or ""."""

    path: str = ""
    origin: str = ""
    problem: str = ""


def version_text(code: int) -> str:
    """The number by which NCCL names its version, as text: "2.28.9" for 22809."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


def find(env: Mapping[str, str] = os.environ) -> Found:
    """The libnccl for this process. Never raises."""
    wanted = env.get(VARIABLE, "")
    try:
        loaded = _engine.loaded_nccl()
    except ConfigMismatch as error:
        return Found(problem=str(error))
    if wanted:
        return _set(wanted, loaded)
    if loaded:
        return Found(loaded, "loaded in this process already")
    return _in_wheel()


class Nccl:
    """Implements `transports.library.Library`."""

    @property
    def scheme(self) -> str:
        return "nccl"

    def available(self) -> str | None:
        return why_no_device() or find().problem or None

    def published(self) -> Sequence[str]:
        return ("1",)  # the version of the exchange by which ranks form NCCL's communicator


def _set(wanted: str, loaded: str) -> Found:
    if not os.path.isabs(wanted) or not os.path.isfile(wanted):
        return Found(problem=f"{VARIABLE} is {wanted!r}, which is not the absolute path of a file: correct or unset it")
    path = os.path.realpath(wanted)
    if loaded and os.path.realpath(loaded) != path:
        return Found(
            problem=f"{VARIABLE} is {wanted}, but this process has loaded {loaded}, and two libnccl in one process may "
            f"call each other's functions: unset {VARIABLE}, or let it name the loaded one"
        )
    return Found(path, VARIABLE)


def _in_wheel() -> Found:
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except (ImportError, ValueError):
        spec = None
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder, "lib", _FILE)
        if path.is_file():
            return _checked(str(path))
    return Found(problem=f"NCCL is not installed: {_CURE}, or name its file in {VARIABLE}")


def _checked(path: str) -> Found:
    """The file of a wheel, which only drivers from a certain version on can use."""
    from importlib.metadata import PackageNotFoundError, version  # takes 10 ms, and few machines have a device

    driver = _engine.cuda_driver()[1]
    for wheel, oldest in _WHEELS.items():
        try:
            name = f"{wheel} {version(wheel)}"
        except PackageNotFoundError:
            continue
        if 0 < driver < oldest:
            supported = f"{driver // 1000}.{driver % 1000 // 10}"
            return Found(
                problem=f"{name} needs a driver for CUDA {oldest // 1000}, but this one supports CUDA up to "
                f"{supported}: install nvidia-nccl-cu12 in its place, or a newer driver"
            )
        return Found(path, name)
    return Found(path, "a wheel of NVIDIA")
