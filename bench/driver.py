"""Functions of the CUDA driver that the floors of `collectives bench --device cuda` call, by ctypes.

Invariant: a function that fails raises TransportUnavailable with the driver's number of the error. Every function works
on the context that the calling thread uses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from collectives.native.errors import TransportUnavailable

_VERSION: Final = 12000  # of the functions that are asked for
_PORTABLE_AND_MAPPED: Final = 3  # CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP
_HANDLE, _U32, _U64, _SIZE = ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint64, ctypes.c_size_t

# A kernel that does nothing, for all devices that this library supports.
_NOTHING: Final = b".version 6.4\n.target sm_70\n.address_size 64\n.visible .entry nothing()\n{\n    ret;\n}\n"


class Driver:
    """The CUDA driver in this process."""

    def __init__(self) -> None:
        """Raises: OSError without a driver; TransportUnavailable if it is too old."""
        self._library: Final = ctypes.CDLL("libcuda.so.1")
        self._copy: Final = self._function("cuMemcpyAsync", _U64, _U64, _SIZE, _HANDLE)
        self._launch: Final = self._function("cuLaunchKernel", _HANDLE, *[_U32] * 7, _HANDLE, _HANDLE, _HANDLE)
        self._write: Final = self._function("cuStreamWriteValue32", _HANDLE, _U64, ctypes.c_uint32, _U32)
        self._wait: Final = self._function("cuStreamWaitValue32", _HANDLE, _U64, ctypes.c_uint32, _U32)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy `nbytes` bytes within the device's memory, in `stream`. `target` and `source` are addresses."""
        _check(self._copy(target, source, nbytes, stream))

    def write(self, stream: int, address: int, value: int) -> None:
        """Append to `stream` an operation that writes the 32 bits of `value` to the device's `address`."""
        _check(self._write(stream, address, value, 0))

    def wait(self, stream: int, address: int, value: int) -> None:
        """Append to `stream` a wait until the 32 bits at the device's `address` are at least `value`."""
        _check(self._wait(stream, address, value, 0))

    def empty_kernel(self) -> Callable[[int], None]:
        """Return a function that launches an empty kernel, with one thread, in the stream that it is called with."""
        module, kernel = _HANDLE(), _HANDLE()
        _check(self._function("cuModuleLoadData", _HANDLE, ctypes.c_char_p)(ctypes.byref(module), _NOTHING))
        _check(
            self._function("cuModuleGetFunction", _HANDLE, _HANDLE, ctypes.c_char_p)(
                ctypes.byref(kernel), module, b"nothing"
            )
        )
        launch = self._launch
        return lambda stream: _check(launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, None, None))

    @contextmanager
    def registered(self, address: int, nbytes: int) -> Iterator[int]:
        """A context manager that lets devices access `nbytes` bytes of host memory at `address`.

        It yields the address of this memory on devices.
        """
        _check(self._function("cuMemHostRegister", _HANDLE, _SIZE, _U32)(address, nbytes, _PORTABLE_AND_MAPPED))
        try:
            found = _U64()
            _check(self._function("cuMemHostGetDevicePointer", _HANDLE, _HANDLE, _U32)(ctypes.byref(found), address, 0))
            yield found.value
        finally:
            self._function("cuMemHostUnregister", _HANDLE)(address)

    def _function(self, name: str, *arguments: Any) -> Callable[..., int]:
        address = _HANDLE()
        try:
            code = self._library.cuGetProcAddress_v2(
                name.encode(), ctypes.byref(address), _VERSION, ctypes.c_uint64(0), None
            )
        except AttributeError:
            raise TransportUnavailable("the CUDA driver is older than CUDA 12: install a newer one") from None
        if code or not address.value:
            raise TransportUnavailable(f"the CUDA driver has no {name}: install a newer one")
        made: Callable[..., int] = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(address.value)
        return made


def _check(code: int) -> None:
    if code:
        raise TransportUnavailable(f"a function of the CUDA driver failed with CUresult {code}")
