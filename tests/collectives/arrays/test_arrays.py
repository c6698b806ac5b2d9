"""What may be passed, as which memory the engine sees it, and what is refused with which words."""

from __future__ import annotations

import array
import ctypes
import math
import sys
import types
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from collectives.arrays import array as arrays
from collectives.native.errors import TransportUnavailable
from tests.collectives.arrays.stand_in_cupy import StandInCupy

FLOATS = np.arange(12, dtype=np.float32).reshape(3, 4)


class OnlyDlpack:
    """An array of another library: DLPack and nothing else."""

    def __init__(self, inner: npt.NDArray[Any]) -> None:
        self.inner = inner

    def __dlpack__(self, **options: Any) -> Any:
        return self.inner.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.inner.__dlpack_device__()


class Subclass(np.ndarray[Any, Any]):
    """An array type of a library that builds on NumPy."""


class OnAnotherDevice(OnlyDlpack):
    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("not in host memory")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 1)


@pytest.mark.parametrize("dtype", list(arrays.dtype_names()), ids=lambda d: d.name)
def test_every_dtype_of_the_contract_is_read_in_place(dtype: np.dtype[Any]) -> None:
    x = np.zeros((2, 3), dtype)
    assert arrays.reading(x) is x
    assert arrays.writing(x).host is x
    assert arrays.dtype_of(dtype.name) == dtype
    assert arrays.dtype_of(dtype) == dtype


def test_there_are_fifteen_dtypes() -> None:
    names = (
        "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool complex64 complex128"
    )
    assert list(arrays.dtype_names().values()) == names.split()


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (b"abc", np.array([97, 98, 99], np.uint8)),
        (bytearray(b"abc"), np.array([97, 98, 99], np.uint8)),
        (memoryview(b"abcdefgh").cast("q"), np.frombuffer(b"abcdefgh", np.int64)),
        (array.array("d", [1.5, 2.5]), np.array([1.5, 2.5])),
        ((ctypes.c_int32 * 2)(7, 8), np.array([7, 8], np.int32)),
        (np.float32(2.5), np.array(2.5, np.float32)),
        (np.array(3), np.array(3)),
        (OnlyDlpack(FLOATS), FLOATS),
        (np.empty((0, 5), np.int8), np.empty((0, 5), np.int8)),
        (np.ones(2).view(Subclass), np.ones(2)),
    ],
    ids=lambda v: type(v).__name__,
)
def test_readable(x: Any, expected: npt.NDArray[Any]) -> None:
    seen = arrays.reading(x)
    assert type(seen) is np.ndarray
    assert seen.dtype == expected.dtype
    assert seen.shape == expected.shape
    assert np.array_equal(seen, expected)


@pytest.mark.parametrize(
    "x", [FLOATS.T, FLOATS[:, ::2], FLOATS[::-1], np.asfortranarray(FLOATS), np.broadcast_to(FLOATS[0], (3, 4))]
)
def test_non_contiguous_input_is_copied(x: npt.NDArray[np.float32]) -> None:
    seen = arrays.reading(x)
    assert seen.flags.c_contiguous
    assert np.array_equal(seen, x)
    assert not np.may_share_memory(seen, x)


def test_unaligned_input_is_copied_and_keeps_its_shape() -> None:
    x = unaligned()
    seen = arrays.reading(x)
    assert seen.flags.aligned
    assert seen.shape == x.shape


def unaligned() -> npt.NDArray[np.float32]:
    return np.zeros(13, np.uint8)[1:].view(np.float32)


def test_zero_d_stays_zero_d() -> None:
    fields = np.zeros(2, np.dtype([("a", np.int8), ("b", np.float32)]))
    zero_d = fields["b"][0:1].reshape(())
    assert not zero_d.flags.aligned
    assert arrays.reading(zero_d).shape == ()


@pytest.mark.parametrize(
    ("x", "advice"),
    [
        ([1.0, 2.0], "x is a list.*numpy.asarray"),
        ((1.0,), "x is a tuple"),
        (1.0, "x is a float"),
        (None, "x is a NoneType"),
        ("abc", "x is a str"),
        ({}, "x is a dict"),
        (object(), "neither the buffer protocol nor DLPack"),
        (np.array([None]), "dtype object, which is not supported; there are float16, bfloat16"),
        (np.array(["a"]), "not supported"),
        (np.zeros(2, "datetime64[s]"), "not supported"),
        (np.zeros(2, "f4,i4"), "not supported"),
        (np.zeros(2, np.longdouble), "not supported"),
        (np.zeros(2, FLOATS.dtype.newbyteorder()), r"byte order.*astype\('float32'\)"),
        (np.ma.masked_less(FLOATS, 3), "masked array"),
        (OnAnotherDevice(FLOATS), "DLPack device 2:1, not in host memory"),
        (memoryview(b"abcd").cast("c"), "not supported"),
    ],
)
def test_unreadable(x: Any, advice: str) -> None:
    with pytest.raises(TypeError, match=advice):
        arrays.reading(x)


def read_only(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(
    ("out", "error", "words"),
    [
        (read_only(FLOATS.copy()), ValueError, "out is read-only"),
        (b"abcd", ValueError, "out is read-only"),
        (FLOATS.T, ValueError, "out is not contiguous"),
        (FLOATS[:, ::2], ValueError, "out is not contiguous"),
        (unaligned(), ValueError, "out is not aligned"),
        (np.float32(1), TypeError, "NumPy scalar"),
        ([1.0], TypeError, "out is a list"),
        (np.array([None]), TypeError, "out has dtype object"),
    ],
)
def test_unwritable(out: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        arrays.writing(out)


@pytest.mark.parametrize("out", [bytearray(8), array.array("d", [0.0]), OnlyDlpack(np.zeros(1)), np.zeros(1)])
def test_writing_reaches_the_callers_memory(out: Any) -> None:
    target = arrays.writing(out)
    target.host[...] = 7
    assert target.deliver() is out
    assert (arrays.reading(out) == 7).all()


def test_out_must_fit_the_result() -> None:
    with pytest.raises(ValueError, match=r"out has shape \(3,\), but the result has shape \(2,\)"):
        arrays.output(np.zeros(3), (2,), np.dtype(np.float64), None)
    with pytest.raises(ValueError, match="out has dtype float32, but the result has dtype float64"):
        arrays.output(np.zeros(2, np.float32), (2,), np.dtype(np.float64), None)
    with pytest.raises(ValueError, match="shape"):
        arrays.output(np.zeros((2, 1)), (2,), np.dtype(np.float64), None)


def test_new_outputs_have_the_results_shape() -> None:
    made = arrays.output(None, (0, 3), np.dtype(ml_dtypes.bfloat16), FLOATS)
    assert made.deliver() is made.host
    assert (made.host.shape, made.host.dtype) == ((0, 3), ml_dtypes.bfloat16)


def test_overlaps() -> None:
    x = np.arange(8.0)
    assert arrays.in_place(x, x)
    assert arrays.in_place(x, x[:])
    assert arrays.in_place(x, x.reshape(2, 4))
    view = x[:]
    view.flags.writeable = False
    assert arrays.in_place(view, x)
    assert not arrays.in_place(x, x.copy())
    assert not arrays.in_place(x[:4], x[4:])
    assert not arrays.in_place(x[:0], x[:0])
    for a, b in ((x[:5], x[3:]), (x[1:], x[:7]), (x, x[:4])):
        with pytest.raises(ValueError, match="overlap in part"):
            arrays.in_place(a, b)
    with pytest.raises(ValueError, match="alltoall does not work in place"):
        arrays.separate(x, x[:4], "alltoall")


@pytest.mark.parametrize(
    ("value", "error"),
    [
        *((v, TypeError) for v in (True, np.True_, 1.0, "0", None)),
        *((v, ValueError) for v in (-1, 4, 2**70)),
    ],
)
def test_ranks_that_are_none(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="root"):
        arrays.check_rank(value, 4, "root")


def test_ranks() -> None:
    assert [arrays.check_rank(v, 4, "root") for v in (0, 3, np.int64(2), np.uint8(1))] == [0, 3, 2, 1]


@pytest.mark.parametrize("value", [math.nan, -1, -0.001, -math.inf, np.float32("nan")])
def test_timeouts_out_of_range(value: float) -> None:
    with pytest.raises(ValueError, match="timeout is"):
        arrays.check_timeout(value)


@pytest.mark.parametrize("value", [True, "5", [1], 1j])
def test_timeouts_of_the_wrong_type(value: Any) -> None:
    with pytest.raises(TypeError, match="seconds"):
        arrays.check_timeout(value)


def test_timeouts() -> None:
    assert [arrays.check_timeout(v) for v in (0, 2, 1.5, np.float32(0.5))] == [0.0, 2.0, 1.5, 0.5]
    assert arrays.check_timeout(math.inf) == 1e9


def test_counts() -> None:
    assert arrays.check_counts([1, 0, 2], 3, 3).dtype == np.int64
    for counts, words in (
        ([1, 2], "each of the 3 ranks"),
        ([1, 1, 2], "add up to 4, but x has 3"),
        ([4, -1, 0], "negative"),
        ([2**63 - 1, 2**63 - 1, 5], "add up"),
    ):
        with pytest.raises(ValueError, match=words):
            arrays.check_counts(counts, 3, 3)
    with pytest.raises(TypeError, match="integers"):
        arrays.check_counts([1.0, 1.0, 1.0], 3, 3)


def test_rows() -> None:
    assert arrays.check_rows(np.zeros((6, 2)), 3, "alltoall") == 2
    assert arrays.check_rows(np.zeros((0, 2)), 3, "alltoall") == 0
    with pytest.raises(ValueError, match=r"x.shape\[0\] = 7 among 3 ranks"):
        arrays.check_rows(np.zeros(7), 3, "reduce_scatter")
    with pytest.raises(ValueError, match="0-d"):
        arrays.check_rows(np.array(7), 3, "reduce_scatter")


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> type[StandInCupy]:
    module = types.ModuleType("cupy")
    module.asarray = StandInCupy  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", module)
    return StandInCupy


def test_device_arrays_go_through_host_memory(cupy: type[StandInCupy]) -> None:
    x = cupy(FLOATS)
    assert np.array_equal(arrays.reading(x), FLOATS)
    updated = arrays.updating(x)
    assert np.array_equal(updated.host, FLOATS)
    updated.host[...] += 1
    assert updated.deliver() is x
    assert np.array_equal(x.memory, FLOATS + 1)
    made = arrays.fresh((2,), np.dtype(np.float32), x)
    made.host[...] = 5
    result = made.deliver()
    assert isinstance(result, cupy)
    assert result.memory.tolist() == [5, 5]


def test_device_arrays_that_cannot_be_written(cupy: type[StandInCupy]) -> None:
    with pytest.raises(ValueError, match="read-only"):
        arrays.writing(cupy(FLOATS, writable=False))
    with pytest.raises(ValueError, match="not contiguous"):
        arrays.writing(cupy(FLOATS, strides=(4, 12)))
    assert arrays.writing(cupy(FLOATS, strides=(16, 4))).host.shape == FLOATS.shape


def test_device_arrays_of_an_unknown_library() -> None:
    """The driver copies its elements, if there is one; no new array of it can be made."""
    body = {"__module__": "elsewhere", "__cuda_array_interface__": StandInCupy(FLOATS).__cuda_array_interface__}
    x = type("Array", (), body)()
    with pytest.raises((TransportUnavailable, ValueError), match=r"NVIDIA driver|not memory of a CUDA device"):
        arrays.reading(x)
    with pytest.raises(TypeError, match="of 'elsewhere', of which no new ones"):
        arrays.fresh((2,), np.dtype(np.float32), x)
