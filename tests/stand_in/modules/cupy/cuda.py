"""Devices and streams of the stand-in for CuPy."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import numpy as np

from . import driver

_LEGACY = 1


class Device:
    def __init__(self, number: int | None = None) -> None:
        self.id = driver.current_device() if number is None else number

    def use(self) -> None:
        driver.push(self.id)

    def __enter__(self) -> None:
        driver.push(self.id)

    def __exit__(self, *_: object) -> None:
        driver.pop()


class Stream:
    """A stream; within `with`, the current one."""

    def __init__(self, ptr: int | None = None, non_blocking: bool = True) -> None:
        self.ptr = driver.create_stream() if ptr is None else ptr
        self.captured = 0  # graphs

    def __enter__(self) -> Stream:
        _streams().append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        _streams().pop()

    def synchronize(self) -> None:
        driver.synchronize(self.ptr)

    def destroy(self) -> None:
        driver.destroy_stream(self.ptr)

    def begin_capture(self) -> None:
        driver.capture(self.ptr, True)

    def end_capture(self) -> Graph:
        driver.capture(self.ptr, False)
        self.captured += 1
        return Graph(self)


class Graph:
    """What a stream has captured last; the stand-in launches it in the same stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._number = stream.captured

    def __del__(self) -> None:
        if self._number == self._stream.captured:
            driver.forget(self._stream.ptr)

    def launch(self, stream: Stream) -> None:
        assert stream.ptr == self._stream.ptr
        driver.launch(stream.ptr)


class Gate:
    """A word of registered memory by which a test holds up streams."""

    def __init__(self) -> None:
        self._memory = np.zeros(1024, np.uint32)
        driver.register(self._memory.ctypes.data, self._memory.nbytes)

    def hold(self, stream: Any) -> None:
        driver.wait_value(stream.ptr, self._memory.ctypes.data, 1)

    def open(self) -> None:
        self._memory[0] = 1


_current = threading.local()


def _streams() -> list[Stream]:
    """The streams that are current on this thread, the last one first in use."""
    if not hasattr(_current, "streams"):
        _current.streams = [Stream(_LEGACY)]
    found: list[Stream] = _current.streams
    return found


def get_current_stream() -> Stream:
    return _streams()[-1]
