"""CUDA tensors of a PyTorch without CUDA, on the stand-in for the CUDA driver: as much as the torch backend uses.

Invariant: a tensor is on a device if its memory is that of the stand-in, also as a view. Operations of torch on it that
are named here first wait for the current stream; others run at once, whatever is in the stream.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from tests.collectives.cuda.runs_on import driver

_devices: Final[dict[int, int]] = {}  # by the address of memory
_current: Final = threading.local()
_plain_device: Final = torch.Tensor.device
_plain_empty: Final = torch.empty


class Event:
    def __init__(self) -> None:
        self._event: Final = driver.create_event()

    def record(self, stream: Stream) -> None:
        driver.record_event(self._event, stream.handle)

    def wait(self, stream: Stream) -> None:
        driver.wait_event(stream.handle, self._event)

    def __del__(self) -> None:
        driver.destroy_event(self._event)


class Stream:
    def __init__(self, device: Any = None, *, cuda_stream: int | None = None) -> None:
        self.cuda_stream: Final = driver.create_stream() if cuda_stream is None else cuda_stream

    @property
    def handle(self) -> int:
        return self.cuda_stream or 1

    @property
    def ptr(self) -> int:  # as a `Gate` of the stand-in for CuPy knows it
        return self.handle

    def record_event(self) -> Event:
        event = Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        driver.synchronize(self.handle)


def _streams() -> list[Stream]:
    """The streams that are current on this thread, the last one first in use."""
    if not hasattr(_current, "streams"):
        _current.streams = [Stream(cuda_stream=0)]
    found: list[Stream] = _current.streams
    return found


def current_stream(device: Any = None) -> Stream:
    driver.current_device()  # the thread has a context from now on
    return _streams()[-1]


@contextmanager
def _stream(stream: Stream) -> Iterator[None]:
    _streams().append(stream)
    try:
        yield
    finally:
        _streams().pop()


def _is_cuda(tensor: Any) -> bool:
    return _plain_device.__get__(tensor).type == "cpu" and tensor.untyped_storage().data_ptr() in _devices


def _device(tensor: Any) -> Any:
    if not _is_cuda(tensor):
        return _plain_device.__get__(tensor)
    return torch.device("cuda", _devices[tensor.untyped_storage().data_ptr()])


def _empty(*size: Any, dtype: Any = None, device: Any = None, **more: Any) -> Any:
    if device is None or torch.device(device).type != "cuda":
        return _plain_empty(*size, dtype=dtype, device=device, **more)
    shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    kind = dtype or torch.get_default_dtype()
    nbytes = math.prod(shape) * kind.itemsize
    address = driver.alloc(max(nbytes, 8))
    _devices[address] = driver.current_device()
    memory = (ctypes.c_char * max(nbytes, 8)).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8)[:nbytes].view(kind).view(tuple(shape))


def cuda(values: Any) -> Any:
    """A copy of a tensor on the current device."""
    made = _empty(tuple(values.shape), dtype=values.dtype, device="cuda")
    return made.copy_(values)


def _waiting(plain: Callable[..., Any]) -> Callable[..., Any]:
    """The operation, which waits for the current stream if a tensor is on a device."""

    def operation(*args: Any, **more: Any) -> Any:
        if any(isinstance(one, torch.Tensor) and one.is_cuda for one in args):
            current_stream().synchronize()
        return plain(*args, **more)

    return operation


def _moving(plain: Callable[..., Any]) -> Callable[..., Any]:
    """The operation, whose result is on the device of its operand."""

    def operation(first: Any, *args: Any, **more: Any) -> Any:
        operands = first if isinstance(first, list | tuple) else [first]
        result = _waiting(plain)(first, *args, **more)
        on_device = any(one.is_cuda for one in operands)
        return cuda(result) if on_device and not result.is_cuda else result

    return operation


def _cpu(tensor: Any) -> Any:
    return _plain_empty(tensor.shape, dtype=tensor.dtype).copy_(tensor) if tensor.is_cuda else tensor


def _to(plain: Callable[..., Any]) -> Callable[..., Any]:
    def operation(tensor: Any, *args: Any, **more: Any) -> Any:
        kinds = [torch.device(one).type for one in args if isinstance(one, str | torch.device)]
        if not kinds:
            return plain(tensor, *args, **more)
        return cuda(tensor) if kinds == ["cuda"] else tensor.cpu()

    return operation


def install(device: int) -> None:
    """From now on, torch has CUDA tensors in this process, which uses `device`."""
    driver.push(device)
    tensor: Any = torch.Tensor
    tensor.is_cuda, tensor.device = property(_is_cuda), property(_device)
    tensor.cpu, tensor.to = _cpu, _to(tensor.to)
    tensor.copy_, tensor.item = _waiting(tensor.copy_), _waiting(tensor.item)
    for name in ("contiguous", "clone"):
        setattr(tensor, name, _moving(getattr(tensor, name)))
    tensor.record_stream = lambda self, stream: None
    module: Any = torch
    module.empty, module.cat, module.sum = _empty, _moving(torch.cat), _waiting(torch.sum)
    found: Any = torch.cuda
    found.is_available, found.current_device = lambda: True, lambda: device
    found.Stream, found.stream, found.current_stream = Stream, _stream, current_stream
    found.default_stream = lambda device=None: Stream(cuda_stream=0)
    found.ExternalStream = lambda handle, device=None: Stream(cuda_stream=handle)
