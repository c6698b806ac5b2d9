"""Whether this process can use a CUDA device, as far as is known before it does.

Invariant: the driver is not initialised, since processes that are forked later could not use it then.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from collectives.native import _engine

_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"  # NVIDIA's: the devices that the driver shows to a process
_NONE: Final = ("", "-1")
# Files through which the driver reaches a device: NVIDIA's cards, the Windows Subsystem for Linux, two kinds of Jetson.
_FILES: Final = ("nvidia[0-9]*", "dxg", "nvhost-gpu", "nvgpu")


def why_no_device(env: Mapping[str, str] = os.environ, folder: Path = Path("/dev")) -> str | None:
    """Returns why no CUDA device can be used; None if there is a driver, which may show some.

    Where no variable says which devices are visible, there has to be one in `folder`.
    """
    if env.get(_VISIBLE, "0").strip() in _NONE:
        return f"no CUDA device is visible: {_VISIBLE} is {env[_VISIBLE]!r}"
    if reason := _engine.why_no_cuda():
        return reason
    if _VISIBLE in env or any(next(folder.glob(name), None) is not None for name in _FILES):
        return None
    return (
        "there is an NVIDIA driver, but no device: see nvidia-smi; a container is started with the devices "
        "(docker run --gpus all)"
    )
