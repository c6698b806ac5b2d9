"""Whether this process can use a CUDA device, as far as is known before it does.

Invariant: the driver is not initialised, since processes that are forked later could not use it then.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from collectives.native import _engine

_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"  # NVIDIA's: the devices that the driver shows to a process
_NONE: Final = ("", "-1")


def why_no_device(env: Mapping[str, str] = os.environ) -> str | None:
    """Returns why no CUDA device can be used; None if there is a driver, which may show some."""
    if env.get(_VISIBLE, "0").strip() in _NONE:
        return f"no CUDA device is visible: {_VISIBLE} is {env[_VISIBLE]!r}"
    return _engine.why_no_cuda()
