"""The device and the stream of a rank of `collectives bench --device cuda`, and CuPy arrays there.

Invariant: all that is measured is in one stream of the rank, and a measured time ends when that stream is empty. Rank r
of a host uses device r, counted modulo the number of devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

import numpy as np

from collectives.native import _engine
from collectives.native.errors import TransportUnavailable

NAMES: Final = ("cpu", "cuda")
TRANSPORTS: Final = ("nccl", "leader")  # those that carry nothing but arrays on devices
_CUPY: Final = 'pip install "pycollectives[cuda12]" or "[cuda13]"'


@dataclass(frozen=True, slots=True)
class Device:
    """A CUDA device, and the stream in which this rank measures on it. `cupy` is the imported package CuPy."""

    cupy: Any
    number: int
    name: str
    stream: Any

    def settle(self) -> None:
        """Wait on the host until the stream is empty."""
        self.stream.synchronize()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an uninitialised array on the device.

        Raises: TypeError, on all ranks, if CuPy does not have the dtype.
        """
        return self.cupy.empty(shape, dtype)


def check() -> None:
    """Check that this process can use a CUDA device with CuPy.

    Raises: TransportUnavailable, which says what is missing.
    """
    reason = _engine.why_no_cuda()
    if reason is not None:
        raise TransportUnavailable(f"--device cuda: {reason}; `collectives doctor` lists what was found")
    if not _engine.cuda_devices():
        raise TransportUnavailable("--device cuda: no device is visible: see nvidia-smi, and CUDA_VISIBLE_DEVICES")
    if find_spec("cupy") is None:
        raise TransportUnavailable(f"--device cuda: the arrays are CuPy's, which is not installed: {_CUPY}")


@contextmanager
def using(local_rank: int) -> Iterator[Device]:
    """A context manager that makes a CUDA device current, with a new stream, and yields both as a `Device`.

    `local_rank`, this rank's number on its host, selects the device. Raises: TransportUnavailable if this process
    cannot use a CUDA device.
    """
    check()
    import cupy

    devices = _engine.cuda_devices()
    number = local_rank % len(devices)
    with ExitStack() as stack:
        stack.enter_context(cupy.cuda.Device(number))
        stream = stack.enter_context(cupy.cuda.Stream(non_blocking=True))
        yield Device(cupy, number, devices[number].name, stream)


def address(array: Any) -> int:
    """The address of an array of CuPy on the device."""
    return int(array.__cuda_array_interface__["data"][0])


def description(device: Device) -> str:
    """Return a line of text about device, driver and CuPy, for the head of a table."""
    code = _engine.cuda_driver()[1]
    version = getattr(device.cupy, "__version__", "unknown")
    return f"{device.name} (device {device.number}), driver for CUDA {code // 1000}.{code % 1000 // 10}, CuPy {version}"


def host_copy(array: Any) -> np.ndarray[Any, Any]:
    """Wait for the operations in the current stream, then return a copy of a CuPy array in host memory."""
    copied: np.ndarray[Any, Any] = array.get()
    return copied
