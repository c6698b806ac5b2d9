"""Arrays in the memory of a CUDA device: address, shape, dtype, device and stream, without a copy.

They come from CuPy, PyTorch, Numba, JAX and TensorFlow, or from any object with `__cuda_array_interface__` or DLPack.

Invariant: no library is imported; as the array exists, its library is loaded already. Nothing here waits for a device.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, NamedTuple

import numpy as np

from collectives.arrays import dlpack
from collectives.arrays.dtypes import Dtype, check_array
from collectives.arrays.exporters import torch
from collectives.arrays.located import is_device_array, library_of
from collectives.arrays.on_device import DeviceArray
from collectives.native import _engine
from collectives.native.errors import TransportUnavailable

_ALLOCATES: Final = ("cupy", "torch", "numba")  # libraries of which new arrays can be made
_OWN: Final = "collectives"  # this library, whose arrays are DeviceArrays
# Libraries whose arrays never change, but do not say so when they are exported.
_UNCHANGING: Final = {"jax": "JAX", "jaxlib": "JAX", "tensorflow": "TensorFlow"}
_IN_ORDER: Final = ("cupy", "torch")  # libraries that give memory again in the order of a stream
LEGACY: Final = 1  # the number of the default stream in `__cuda_array_interface__` and DLPack


class NoRoom(TransportUnavailable):
    """This rank has no memory for a call: its device is full, or host memory cannot be pinned.

    The other ranks may have begun the call, and do not know it.
    """


class CudaArray(NamedTuple):
    """An array on a device. `stream`: the handle of the CUDA stream in which the array's library uses it now."""

    address: int
    shape: tuple[int, ...]
    dtype: Dtype
    device: int
    stream: int
    origin: Any  # the user's object
    keeps: Any = None  # what has to live as long as the address is used

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def library(self) -> str:
        """The name of the library that makes arrays for results: the user's own if it can make any, else "cupy".

        It is "collectives" for a DeviceArray.
        """
        found = _library(self.origin)
        return found if found in (*_ALLOCATES, _OWN) else "cupy"


def on_cuda(x: object) -> bool:
    """Whether `x` is in the memory of a CUDA device."""
    return type(x) is not np.ndarray and (is_device_array(x) or dlpack.is_cuda(x))


def device_of(x: object) -> int | None:
    """Returns the number of the device of `x`, as `x` itself says it; None if it does not, or is not on a device."""
    if not on_cuda(x):
        return None
    where = getattr(x, "__dlpack_device__", None)
    return _said_by(x) if where is None else int(where()[1])


def reading(x: Any, name: str = "x", *, moved: bool = False) -> CudaArray:
    """Returns `x` as a `CudaArray` for reading. `moved`: the collective only moves the elements.

    Raises TypeError for an unsupported dtype or object, ValueError if `x` is not contiguous.
    """
    return _described(x, name, moved, written=False)


def writing(x: Any, name: str = "out", *, moved: bool = False) -> CudaArray:
    """Returns `x` as a `CudaArray` for writing. Raises as `reading`, and TypeError for arrays of JAX and TensorFlow."""
    return _described(x, name, moved, written=True)


def fresh(like: CudaArray, shape: tuple[int, ...], stream: int) -> CudaArray:
    """Returns a new array for a result that `stream` writes: on the device of `like`, of its library and dtype.

    Raises TypeError if no arrays of this library (such as CuPy) can be made here. Raises ValueError if `stream` is
    being captured, and the graph would not keep the new memory. Raises NoRoom if the device's memory is full.
    """
    library = _library(like.origin)
    if isinstance(like.origin, DeviceArray):
        return _own(shape, like.dtype, like.device)
    if library not in _ALLOCATES:
        raise TypeError(f"x is a device array of {library!r}, of which no new ones can be made here: give out=")
    if library != "torch" and _engine.is_capturing(stream, like.device):
        raise ValueError("the stream is being captured into a graph, which does not keep new arrays: give out=")
    dtype = like.origin.dtype if library == "torch" else like.dtype
    return _new(library, shape, dtype, like.device, stream)


def _own(shape: tuple[int, ...], dtype: Dtype, device: int) -> CudaArray:
    """A new array of this library."""
    try:
        return reading(DeviceArray(shape, dtype, device), "out", moved=True)
    except TransportUnavailable as error:
        raise NoRoom(str(error)) from error


def new(library: str, shape: tuple[int, ...], dtype: Dtype, device: int, stream: int) -> CudaArray:
    """Returns a new array of the library with the name `library`, which it imports; a DeviceArray if there is none.

    The array is not initialised. Work in `stream` is to write it. Raises NoRoom if the device's memory is full.
    """
    if _imported(library) is None:
        return _own(shape, dtype, device)
    kind: Any = torch.kind_of(dtype) if library == "torch" else dtype
    return _new(library, shape, kind, device, stream)


def _imported(library: str) -> Any:
    """The module that makes arrays of this library; None if it is not installed, and for this library."""
    if library == _OWN:
        return None
    try:
        return import_module("numba.cuda" if library == "numba" else library)
    except ModuleNotFoundError:
        return None


def current_stream(library: str, device: int) -> int:
    """Returns the handle of the CUDA stream in which the library with this name uses new arrays now."""
    module = _imported(library) if library in _IN_ORDER else None
    if module is None:
        return LEGACY
    if library == "torch":
        return module.cuda.current_stream(device).cuda_stream or LEGACY
    return module.cuda.get_current_stream().ptr or LEGACY


def _new(library: str, shape: tuple[int, ...], dtype: Any, device: int, stream: int) -> CudaArray:
    with allocating(library, shape, device):
        return _allocated(library, shape, dtype, device)


@contextmanager
def allocating(library: str, shape: tuple[int, ...], device: int | None) -> Iterator[None]:
    """Returns a context manager: if there is no memory for what the `with` block allocates by `library`, raises NoRoom.

    `shape`: of the result for which the block allocates memory.
    """
    try:
        yield
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        raise NoRoom(
            f"device {device} has no memory left for a result of shape {shape}: give out=, free arrays, or empty the "
            f"memory pool of {library} ({error})"
        ) from error


def _is_out_of_memory(error: Exception) -> bool:
    """Whether a library has raised this error since a device's memory is full: each library has its own class."""
    return type(error).__name__ == "OutOfMemoryError" or "CUDA_ERROR_OUT_OF_MEMORY" in str(error)


def _allocated(library: str, shape: tuple[int, ...], dtype: Any, device: int) -> CudaArray:
    if library == "torch":
        module = sys.modules["torch"]
        return reading(module.empty(shape, dtype=dtype, device=module.device("cuda", device)), "out", moved=True)
    if library == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(device):
            return reading(cupy.empty(shape, dtype), "out", moved=True)
    return reading(sys.modules["numba.cuda"].device_array(shape, dtype), "out", moved=True)


def ordered_apart(arrays: Iterable[CudaArray | None], stream: int) -> tuple[CudaArray, ...]:
    """Returns those of the arrays whose memory its library may give to others before `stream` has used it.

    A library that gives memory again in the order of its own stream needs nothing if this is `stream`.
    """
    found: dict[int, CudaArray] = {}
    for array in arrays:
        if array is not None and (array.stream != stream or _library(array.origin) not in _IN_ORDER):
            found[id(array.origin)] = array
    return tuple(found.values())


def hold(arrays: Sequence[CudaArray], stream: int) -> Any:
    """Let `stream` use the memory of arrays that `ordered_apart` has returned; called after it was given the work.

    Returns objects that have to live until the stream has done this work.
    """
    kept = []
    for array in arrays:
        if _library(array.origin) == "torch":  # whose allocator waits for all streams that it knows of
            array.origin.record_stream(_torch_stream(stream, array.origin.device))
        else:
            kept.append((array.origin, array.keeps))
    return kept


def refuse_capture(x: Any) -> None:
    """ValueError if the stream in which `x` is used is being captured, for a call that copies `x` through host memory.

    `x`: an array of any library in the memory of a device, or a `CudaArray`. It is not checked further.
    """
    if _engine.why_no_cuda():
        return
    device, stream = (x.device, x.stream) if isinstance(x, CudaArray) else _in_use(x)
    if _engine.is_capturing(stream, device):
        raise ValueError(
            "the stream is being captured into a graph, but the call runs through host memory, which no graph "
            "contains: see explain"
        )


def begin_write(array: CudaArray) -> None:
    """Notify the array's library that the array will be written; called after all checks."""
    if _library(array.origin) == "torch":
        sys.modules["torch"].autograd.graph.increment_version(array.origin)


def handle_of(stream: Any) -> int:
    """Returns the handle of `stream`, which a user passes: a number, or a stream of CuPy, PyTorch, Numba or cuda.core.

    Raises TypeError for other objects, ValueError for a number that cannot be a stream.
    """
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        found = protocol() if callable(protocol) else protocol
        stream = found[1] if isinstance(found, tuple) and len(found) == 2 else found
    else:
        for name in ("cuda_stream", "ptr", "handle"):
            if hasattr(stream, name):
                stream = getattr(stream, name)
                break
    stream = getattr(stream, "value", stream)  # Numba's handles are of ctypes
    if stream is None:  # as ctypes shows a null pointer
        return LEGACY
    if isinstance(stream, bool) or not isinstance(stream, int):
        raise TypeError(f"stream is a {type(stream).__name__}: give a stream of CuPy, PyTorch or Numba, or its handle")
    if not 0 <= stream < 2**64:
        raise ValueError(f"stream is {stream}, which is no handle of a stream")
    return stream or LEGACY


def _torch_stream(stream: int, device: Any) -> Any:
    cuda = sys.modules["torch"].cuda
    return cuda.default_stream(device) if stream == LEGACY else cuda.ExternalStream(stream, device=device)


def _in_use(x: Any) -> tuple[int, int]:
    """Returns the number of the device of `x`, and the handle of the stream in which its library uses it now."""
    library = _library(x)
    if library == "torch":
        return x.device.index, sys.modules["torch"].cuda.current_stream(x.device).cuda_stream or LEGACY
    if library == "cupy":
        with x.device:
            return x.device.id, sys.modules["cupy"].cuda.get_current_stream().ptr or LEGACY
    if library in _UNCHANGING or not is_device_array(x):
        return int(x.__dlpack_device__()[1]), LEGACY
    interface = x.__cuda_array_interface__
    return _device(x, interface["data"][0]), interface.get("stream") or LEGACY


def _library(x: object) -> str:
    """The name of the library that `x` is of; for a type that derives from one of its types, of this library."""
    return library_of(type(x))


def _described(x: Any, name: str, moved: bool, written: bool) -> CudaArray:
    library = _library(x)
    if library == "torch":
        return _of_torch(x, name, moved)
    if library in _UNCHANGING:
        if written:
            raise TypeError(
                f"{name} is an array of {_UNCHANGING[library]}, which must not be written: give one of another library"
            )
        return _of_dlpack(x, name, moved, written)
    if is_device_array(x):
        return _of_interface(x, name, moved, written, library)
    return _of_dlpack(x, name, moved, written)


def _of_torch(x: Any, name: str, moved: bool) -> CudaArray:
    torch.check(x, name)
    torch.check_gradient(x, name)
    dtype = torch.dtype_of(x, name, moved)
    if not x.is_contiguous():
        raise ValueError(_gaps(name))
    if x.is_conj() or x.is_neg():
        raise ValueError(f"{name} is conjugated or negated only when it is read: give {name}.clone()")
    stream = sys.modules["torch"].cuda.current_stream(x.device).cuda_stream
    return CudaArray(x.data_ptr(), tuple(x.shape), dtype, x.device.index, stream or LEGACY, x)


def _of_interface(x: Any, name: str, moved: bool, written: bool, library: str) -> CudaArray:
    interface = x.__cuda_array_interface__
    shape = tuple(interface["shape"])
    # The interface has no name for bfloat16, but the arrays' own dtype has.
    dtype = np.dtype(x.dtype if hasattr(x, "dtype") else interface["typestr"])
    check_array(dtype, name, moved)
    address, read_only = interface["data"]
    if written and read_only:
        raise ValueError(f"{name} is read-only: give an array that can be written")
    if interface.get("mask") is not None:
        raise TypeError(f"{name} is masked: give its data and its mask each for itself")
    _check_strides(shape, interface.get("strides"), dtype.itemsize, name)
    stream = interface.get("stream")
    if stream == 0:
        raise ValueError(f"{name} says that its stream is 0, which __cuda_array_interface__ does not allow")
    if library == "cupy":
        stream = sys.modules["cupy"].cuda.get_current_stream().ptr
    device = _device(x, address)
    return CudaArray(address or 0, shape, dtype, device, stream or LEGACY, x)


def _of_dlpack(x: Any, name: str, moved: bool, written: bool) -> CudaArray:
    if _library(x) == "tensorflow":  # it does not show its streams: wait on the host for all that is in them
        sys.modules["tensorflow"].test.experimental.sync_devices()
    tensor = dlpack.exported(x, LEGACY, name)
    check_array(tensor.dtype, name, moved)
    if written and tensor.read_only:
        raise ValueError(f"{name} is read-only: give an array that can be written")
    _check_strides(tensor.shape, tensor.strides, tensor.dtype.itemsize, name)
    return CudaArray(tensor.address, tensor.shape, tensor.dtype, tensor.device, LEGACY, x, tensor.capsule)


def _device(x: Any, address: int) -> int:
    """The number of the device: the array's own word for it, or what the driver knows about the address."""
    said = _said_by(x)
    if said is not None:
        return said
    kind, number = _engine.cuda_memory(address or 0)
    return number if kind == "cuda" else 0


def _said_by(x: Any) -> int | None:
    device = getattr(x, "device", None)
    if isinstance(device, int):
        return device
    for name in ("id", "index"):  # CuPy and Numba have the first
        number = getattr(device, name, None)
        if isinstance(number, int):
            return number
    return None


def _check_strides(shape: tuple[int, ...], strides: tuple[int, ...] | None, itemsize: int, name: str) -> None:
    expected = itemsize
    for extent, stride in zip(reversed(shape), reversed(strides or ()), strict=False):
        if extent > 1 and stride != expected:
            raise ValueError(_gaps(name))
        expected *= extent


def _gaps(name: str) -> str:
    return f"{name} is not contiguous: arrays on a device are used where they are, so give a contiguous copy"
