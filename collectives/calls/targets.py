"""The arrays on a device that a collective reads and writes: those that users give, checked, and new ones.

Invariant: invalid arrays are refused with TypeError or ValueError before anything is sent.
"""

from __future__ import annotations

from typing import Any, Final

from collectives.arrays import cuda
from collectives.arrays.cuda import CudaArray

ROWS: Final = ("reduce_scatter", "alltoall")  # collectives that divide the first axis among ranks
FLOAT8: Final = ("float8_e4m3fn", "float8_e5m2")  # NCCL reduces them, and host memory has no reduction of them
_IN_PLACE: Final = ("allreduce", "reduce", "scan", "exscan")


def reduced(x: Any, name: str = "x") -> CudaArray:
    """Returns the device array `x`, which will be reduced; also 8-bit floats, which only NCCL can reduce."""
    narrow = str(getattr(x, "dtype", "")).removeprefix("torch.") in FLOAT8
    return cuda.reading(x, name, moved=narrow)


def another_device(device: int, used: int | None, rank: int) -> ValueError:
    """Returns the error for an array on `device`, when rank `rank` has used the communicator on device `used`."""
    return ValueError(
        f"x is on device {device}, but rank {rank} of this communicator uses device {used}: one communicator has one "
        "device on each rank (comm.dup() gives another)"
    )


def only_on_devices(transport: str, rank: int, what: str = "x is") -> TypeError:
    """Returns the error for arrays in host memory on a communicator of this transport, which only runs device calls."""
    return TypeError(
        f'rank {rank}: {what} in host memory, but this communicator was made with transport="{transport}": give an '
        'array on a CUDA device, or make the communicator with transport="auto"'
    )


def target(name: str, x: CudaArray, out: Any, root: int, stream: int, rank: int, size: int) -> CudaArray | None:
    """Returns the array for the result of collective `name` on rank `rank` of `size`; None if that rank gets no result.

    `stream`: the CUDA stream that writes a new array.
    """
    shape = x.shape
    if name == "broadcast":
        return x
    if name in ("reduce", "gather") and root != rank:
        return None
    if name in ("allgather", "gather"):
        shape = (size, *x.shape)
    if name in ROWS and (not x.shape or x.shape[0] % size):
        raise ValueError(f"{name} divides the first axis of x among {size} ranks, but x has shape {x.shape}")
    if name == "reduce_scatter":
        shape = (x.shape[0] // size, *x.shape[1:])
    return output(name, x, out, shape, stream)


def output(name: str, x: CudaArray, out: Any, shape: tuple[int, ...], stream: int) -> CudaArray:
    """The array for a result of this shape, which `stream` writes: `out`, or a new array if `out` is None."""
    if out is None:
        return cuda.fresh(x, shape, stream)
    found = cuda.writing(out, "out", moved=True)
    if found.shape != shape or found.dtype != x.dtype:
        raise ValueError(
            f"out has shape {found.shape} and dtype {found.dtype}, but the result has {shape} and {x.dtype}"
        )
    if found.device != x.device:
        raise ValueError(f"x is on device {x.device} and out on device {found.device}: give both on one device")
    same = found.address == x.address and name in _IN_PLACE
    if not same and overlap(x, found):
        raise ValueError(f"x and out share memory, but {name} does not work like that: give separate arrays")
    return found


def overlap(x: CudaArray, y: CudaArray) -> bool:
    """Whether two arrays share memory."""
    return y.address < x.address + x.nbytes and x.address < y.address + y.nbytes
