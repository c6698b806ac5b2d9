"""Arrays in a GPU's memory, as their libraries make them. Without a GPU all of it is skipped, library by library.

What a stand-in for CuPy can show is in test_arrays.py.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import collectives
from tests.collectives.groups import ranks

pytestmark = pytest.mark.gpu

FLOATS = np.arange(12, dtype="float32").reshape(3, 4)


class Cupy:
    """How a test makes a library's array of a NumPy array, and one of it again."""

    def __init__(self) -> None:
        self.module = importlib.import_module("cupy")
        if not self.module.cuda.is_available():
            raise ImportError("CuPy finds no GPU")
        self.kind = self.module.ndarray

    def put(self, host: npt.NDArray[Any]) -> Any:
        return self.module.asarray(host)

    def get(self, x: Any) -> npt.NDArray[Any]:
        return np.asarray(x.get())


class Torch:
    def __init__(self) -> None:
        self.module = importlib.import_module("torch")
        if not self.module.cuda.is_available():
            raise ImportError("torch finds no GPU")
        self.kind = self.module.Tensor

    def put(self, host: npt.NDArray[Any]) -> Any:
        if host.dtype == ml_dtypes.bfloat16:
            return self.module.from_numpy(host.view("int16")).view(self.module.bfloat16).cuda()
        return self.module.from_numpy(host).cuda()

    def get(self, x: Any) -> npt.NDArray[Any]:
        assert x.is_cuda
        host = x.detach().cpu()
        if host.dtype == self.module.bfloat16:
            return np.asarray(host.view(self.module.int16).numpy().view(ml_dtypes.bfloat16))
        return np.asarray(host.numpy())


class Numba:
    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy 2.5, about what it does when imported
            self.module = importlib.import_module("numba.cuda")
        if not self.module.is_available():
            raise ImportError("Numba finds no GPU")
        self.kind = type(self.module.device_array(1))

    def put(self, host: npt.NDArray[Any]) -> Any:
        return self.module.to_device(host)

    def get(self, x: Any) -> npt.NDArray[Any]:
        return np.asarray(x.copy_to_host())


def _open(library: Callable[[], Any]) -> Any:
    try:
        return library()
    except ImportError as error:
        pytest.skip(f"needs {library.__name__} and a GPU: {error}")


@pytest.fixture(params=[Cupy, Torch, Numba])
def gpu(request: pytest.FixtureRequest) -> Any:
    return _open(request.param)


def test_results_are_arrays_of_the_library(gpu: Any) -> None:
    def body(comm: collectives.Communicator) -> None:
        x = gpu.put(FLOATS + comm.rank)
        total = comm.allreduce(x)
        assert isinstance(total, gpu.kind)
        np.testing.assert_array_equal(gpu.get(total), 2 * FLOATS + 1)
        np.testing.assert_array_equal(gpu.get(x), FLOATS + comm.rank)
        np.testing.assert_array_equal(gpu.get(comm.allgather(x)), [FLOATS, FLOATS + 1])
        np.testing.assert_array_equal(gpu.get(comm.allreduce_async(x, "max").wait()), FLOATS + 1)

    ranks(2, body)


def test_results_go_where_the_caller_says(gpu: Any) -> None:
    def body(comm: collectives.Communicator) -> None:
        x, out = gpu.put(FLOATS + comm.rank), gpu.put(np.zeros_like(FLOATS))
        assert comm.allreduce(x, out=out) is out
        np.testing.assert_array_equal(gpu.get(out), 2 * FLOATS + 1)
        assert comm.allreduce(x, out=x) is x
        np.testing.assert_array_equal(gpu.get(x), 2 * FLOATS + 1)
        y = gpu.put(FLOATS * (1 - comm.rank))
        assert comm.broadcast(y, root=0) is y
        np.testing.assert_array_equal(gpu.get(y), FLOATS)
        if comm.rank == 0:
            comm.send(y, 1)
        else:
            np.testing.assert_array_equal(gpu.get(comm.recv(out, 0)), FLOATS)

    ranks(2, body)


@pytest.mark.filterwarnings("ignore:.*Grid size")  # of Numba, which copies a small array by a kernel
def test_arrays_that_are_not_contiguous_are_read_and_not_written(gpu: Any) -> None:
    def body(comm: collectives.Communicator) -> None:
        x = gpu.put(FLOATS).T
        np.testing.assert_array_equal(gpu.get(comm.allreduce(x)), 2 * FLOATS.T)
        with pytest.raises(ValueError, match="not contiguous"):
            comm.allreduce(x, out=x)

    ranks(2, body)


@pytest.mark.parametrize("library", [Cupy, Torch])
def test_bfloat16(library: Callable[[], Any]) -> None:
    gpu = _open(library)
    values = np.array([1.5, -2.0, 3.0], ml_dtypes.bfloat16)

    def body(comm: collectives.Communicator) -> None:
        x = gpu.put(values)
        total = comm.allreduce(x)
        assert total.dtype == x.dtype
        np.testing.assert_array_equal(gpu.get(total), values + values)
        comm.allreduce(x, out=x)
        np.testing.assert_array_equal(gpu.get(x), values + values)

    ranks(2, body)


def test_lazy_bits_of_torch_are_resolved() -> None:
    """The CUDA array interface drops them: findings/cuda-interface-drops-lazy-bits.sh."""
    gpu = _open(Torch)

    def body(comm: collectives.Communicator) -> None:
        conjugate = gpu.module.tensor([1 + 2j, 3 + 4j]).cuda().conj()
        assert comm.allreduce(conjugate).tolist() == [2 - 4j, 6 - 8j]
        assert comm.allreduce(conjugate.imag).tolist() == [-4, -8]
        gathered = comm.allgather(conjugate.imag)
        assert gathered.tolist() == [[-2, -4], [-2, -4]]

    ranks(2, body)


def test_gradients_of_torch() -> None:
    gpu = _open(Torch)

    def body(comm: collectives.Communicator) -> None:
        leaf = gpu.module.ones(2, device="cuda", requires_grad=True)
        with pytest.raises(TypeError, match="detach"):
            comm.allreduce(leaf)
        with gpu.module.no_grad():
            assert comm.allreduce(leaf).tolist() == [2, 2]
        x = gpu.module.ones(2, device="cuda")
        before = x._version
        comm.allreduce(x, out=x)
        assert x._version > before

    ranks(2, body)


def test_work_of_the_current_stream_is_waited_for() -> None:
    gpu = _open(Cupy)
    cupy = gpu.module
    spin = cupy.RawKernel(
        r'extern "C" __global__ void spin(long long n) { long long s = clock64(); while (clock64() - s < n); }', "spin"
    )
    spin((1,), (1,), (1000,))
    x = cupy.zeros(1 << 16, "float32")
    x.fill(1)
    cupy.cuda.Device().synchronize()
    with collectives.init() as comm, cupy.cuda.Stream(non_blocking=True):
        spin((1,), (1,), (200_000_000,))
        x.fill(7)
        assert float(comm.allreduce(x)[0]) == 7


def test_arrays_of_jax_name_the_cure() -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip(f"needs JAX on a GPU, this one is on {jax.default_backend()}")
    with collectives.init() as comm:
        x = jax.numpy.arange(4.0)
        with pytest.raises(TypeError, match="give out="):
            comm.allreduce(x)
        with pytest.raises((TypeError, ValueError)):
            comm.allreduce(np.arange(4.0, dtype="float32"), out=x)
