"""The functions of the stand-in for the CUDA driver, called as CuPy calls those of the driver."""

from __future__ import annotations

import ctypes
import threading

_library = ctypes.CDLL("libcuda.so.1")
_local = threading.local()


def _function(name: str, *arguments: type) -> ctypes._CFuncPtr:  # type: ignore[name-defined]
    address = ctypes.c_void_p()
    code = _library.cuGetProcAddress_v2(name.encode(), ctypes.byref(address), 12000, ctypes.c_uint64(0), None)
    assert code == 0 and address.value, f"{name}: {code}"
    return ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(address.value)


_U64, _OUT = ctypes.c_uint64, ctypes.c_void_p
KINDS = ("handle", "descriptor", "none")  # how memory can be exported to other processes
kind = KINDS[0]  # of the memory that is allocated next
_free = _function("cuMemFree", _U64)
_retain = _function("cuDevicePrimaryCtxRetain", _OUT, ctypes.c_int)
_push = _function("cuCtxPushCurrent", ctypes.c_void_p)
_pop = _function("cuCtxPopCurrent", _OUT)
_create = _function("cuStreamCreate", _OUT, ctypes.c_uint)
_destroy = _function("cuStreamDestroy", ctypes.c_void_p)
_wait = _function("cuStreamWaitValue32", ctypes.c_void_p, _U64, ctypes.c_uint32, ctypes.c_uint)
_create_event = _function("cuEventCreate", _OUT, ctypes.c_uint)
_record_event = _function("cuEventRecord", ctypes.c_void_p, ctypes.c_void_p)
_wait_event = _function("cuStreamWaitEvent", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
_destroy_event = _function("cuEventDestroy", ctypes.c_void_p)
_register = _function("cuMemHostRegister", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)


class OutOfMemoryError(MemoryError):
    """As CuPy's own."""


def _check(code: int) -> None:
    if code == 2:
        raise OutOfMemoryError("Out of memory")
    assert code == 0, f"the stand-in for the driver returned {code}"


def _pushed() -> list[int]:
    """The devices whose contexts this thread has pushed."""
    if not hasattr(_local, "devices"):
        _local.devices = []
    found: list[int] = _local.devices
    return found


def push(device: int) -> None:
    context = ctypes.c_void_p()
    _check(_retain(ctypes.byref(context), device))
    _check(_push(context))
    _pushed().append(device)


def pop() -> None:
    _check(_pop(ctypes.byref(ctypes.c_void_p())))
    _pushed().pop()


def current_device() -> int:
    if not _pushed():
        push(0)
    return _pushed()[-1]


def alloc(nbytes: int) -> int:
    current_device()
    address = _U64()
    _check(_library.stand_in_allocate(ctypes.byref(address), ctypes.c_size_t(nbytes), KINDS.index(kind)))
    return address.value


def free(address: int) -> None:
    _check(_free(address))


def create_stream() -> int:
    current_device()
    stream = ctypes.c_void_p()
    _check(_create(ctypes.byref(stream), 1))
    assert stream.value
    return stream.value


def destroy_stream(stream: int) -> None:
    _check(_destroy(stream))


def synchronize(stream: int) -> None:
    current_device()
    _check(_library.stand_in_synchronize(ctypes.c_void_p(stream)))


def capture(stream: int, on: bool) -> None:
    _check(_library.stand_in_capture(ctypes.c_void_p(stream), int(on)))


def forget(stream: int) -> None:
    _check(_library.stand_in_forget(ctypes.c_void_p(stream)))


def launch(stream: int) -> None:
    _check(_library.stand_in_launch(ctypes.c_void_p(stream)))


def wait_value(stream: int, address: int, value: int) -> None:
    _check(_wait(stream, address, value, 0))


def create_event() -> int:
    event = ctypes.c_void_p()
    _check(_create_event(ctypes.byref(event), 2))
    assert event.value
    return event.value


def record_event(event: int, stream: int) -> None:
    _check(_record_event(event, stream))


def wait_event(stream: int, event: int) -> None:
    _check(_wait_event(stream, event, 0))


def destroy_event(event: int) -> None:
    _check(_destroy_event(event))


def register(address: int, nbytes: int) -> None:
    _check(_register(address, nbytes, 3))


def registered() -> int:
    """How many ranges of host memory are registered."""
    return int(_library.stand_in_registered())


def opened() -> int:
    """How many handles of other processes' memory are open here."""
    return int(_library.stand_in_opened())
