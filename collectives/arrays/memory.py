"""Which memory an array is in: host memory or that of a device.

Invariant: nothing is copied, and no library is imported; as the array exists, its library is loaded already.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from collectives.arrays.located import is_device_array


class Memory(NamedTuple):
    """The kind of memory that an array is in: `kind` is "host" or "cuda".

    `device` is the number of the GPU, or -1 for host memory or an unknown GPU.
    """

    kind: str
    device: int = -1

    def __str__(self) -> str:
        return self.kind if self.device < 0 else f"{self.kind}:{self.device}"


HOST: Final = Memory("host")


def memory_of(x: Any) -> Memory:
    """Returns the kind of memory that `x` is in: that of a GPU if `x` is a device array, else host memory."""
    if not is_device_array(x):
        return HOST
    device: Any = getattr(x, "device", None)
    for name in ("index", "id"):  # the number of the device in torch, and in CuPy and Numba
        number = getattr(device, name, None)
        if isinstance(number, int):
            return Memory("cuda", number)
    return Memory("cuda")
