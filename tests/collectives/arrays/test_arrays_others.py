"""Objects that say more than their numbers, exporters that give what is not theirs, and what else people pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from collectives.arrays import array as arrays
from collectives.core.communicator import Communicator
from tests.collectives.groups import ranks

USES = pytest.mark.parametrize("use", [arrays.reading, arrays.writing])


class InUnits(np.ndarray[Any, Any]):
    """What astropy's Quantity and unyt's unyt_array have in common."""

    unit: Any = "m"


class Masked(np.ndarray[Any, Any]):
    mask = np.array([True, False])


@USES
def test_units_and_masks_are_not_dropped(use: Callable[[Any, str], Any]) -> None:
    with pytest.raises(TypeError, match=r"the unit 'm', which would be lost.*x.value"):
        use(np.ones(2).view(InUnits), "x")
    with pytest.raises(TypeError, match=r"has a mask: give x.filled\(value\)"):
        use(np.ones(2).view(Masked), "x")
    plain = np.ones(2).view(InUnits)
    plain.unit = None
    use(plain, "x")


class Exporter:
    """DLPack alone."""

    def __init__(self, export: Callable[[], Any]) -> None:
        self.export = export

    def __dlpack__(self, **options: Any) -> Any:
        return self.export().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_an_exporter_of_copies_is_read_and_not_written() -> None:
    x = np.arange(3.0)
    assert arrays.reading(Exporter(x.copy)).tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match=r"exports copies .* cannot be written: give numpy.array\(x\)"):
        arrays.writing(Exporter(x.copy), "x")
    arrays.writing(Exporter(lambda: x), "x").host[...] = 5
    assert x.tolist() == [5, 5, 5]


@USES
def test_an_exporter_of_nothing_is_refused(use: Callable[[Any, str], Any]) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch, where wrappers export null pointers, is not installed")
    from torch.testing._internal.two_tensor import TwoTensor

    wrapper = TwoTensor(torch.ones(2), torch.ones(2))
    with pytest.raises(TypeError, match="null pointer"):
        use(Exporter(lambda: wrapper), "x")


@USES
def test_an_exporter_that_fails_says_so_in_one_error(use: Callable[[Any, str], Any]) -> None:
    class Failing:
        def __dlpack__(self, **_: Any) -> Any:
            raise KeyError("nothing here")

        def __dlpack_device__(self) -> tuple[int, int]:
            raise AttributeError("neither")

    with pytest.raises(TypeError, match="Failing, cannot be read through DLPack: 'nothing here'"):
        use(Failing(), "x")


def test_bytes_are_broadcast_by_nobody() -> None:
    def body(comm: Communicator) -> None:
        for wrong in (b"abc", memoryview(b"abc")):
            with pytest.raises(ValueError, match="x is read-only"):
                comm.broadcast(wrong, 0)
        with pytest.raises(TypeError, match="NumPy scalar"):
            comm.broadcast(np.float32(1), 0)
        assert comm.allreduce(np.ones(1)) == [2]  # nobody was left behind

    ranks(2, body)


# --- real libraries, where they are installed


def test_sparse_matrices_name_the_cure() -> None:
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is not installed")
    for kind in (sparse.csr_array, sparse.csr_matrix):
        with pytest.raises(TypeError, match=r"neither the buffer protocol nor DLPack: give x.toarray\(\)"):
            arrays.reading(kind(np.eye(2)))


TABLES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "pandas.Series": ("pandas", lambda pd: pd.Series([1.0, 2.0])),
    "pandas.DataFrame": ("pandas", lambda pd: pd.DataFrame({"a": [1.0]})),
    "pandas.Index": ("pandas", lambda pd: pd.Index([1.0])),
    "polars.Series": ("polars", lambda pl: pl.Series([1.0])),
    "polars.DataFrame": ("polars", lambda pl: pl.DataFrame({"a": [1.0]})),
    "xarray.DataArray": ("xarray", lambda xr: xr.DataArray(np.ones(2))),
    "awkward.Array": ("awkward", lambda ak: ak.Array([1.0])),
    "pyarrow.ChunkedArray": ("pyarrow", lambda pa: pa.chunked_array([[1.0], [2.0]])),
    "pyarrow.Table": ("pyarrow", lambda pa: pa.table({"a": [1.0]})),
}


@pytest.mark.parametrize("name", list(TABLES))
def test_containers_name_the_cure(name: str) -> None:
    library, make = TABLES[name]
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    with pytest.raises(TypeError, match=rf"{name}, which has neither .* give a NumPy array, e.g. numpy.asarray\(x\)"):
        arrays.reading(make(module))


def _pint(pint: Any) -> Any:
    return pint.UnitRegistry().Quantity(np.ones(2), "m")


QUANTITIES: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "astropy": ("astropy.units", lambda u: np.ones(2) * u.km, "the unit 'km'.*x.value"),
    "astropy scalar": ("astropy.units", lambda u: 1.0 * u.percent, "the unit '%'"),
    "astropy mask": ("astropy.utils.masked", lambda m: m.Masked(np.ones(2), mask=[True, False]), "has a mask"),
    "unyt": ("unyt", lambda unyt: unyt.unyt_array([1.0], "km"), "the unit 'km'.*x.value"),
    "pint": ("pint", _pint, "the unit 'meter'.*x.magnitude"),
}


@USES
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(QUANTITIES))
def test_quantities_are_refused(name: str, use: Callable[[Any, str], Any]) -> None:
    library, make, words = QUANTITIES[name]
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    with pytest.raises(TypeError, match=words):
        use(make(module), "x")


def test_arrows_buffers_are_unsigned_bytes() -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    assert arrays.reading(pa.py_buffer(b"\xff\x01")).tolist() == [255, 1]
    own = pa.allocate_buffer(2)
    arrays.writing(own).host[...] = 200
    assert own.to_pybytes() == b"\xc8\xc8"
    with pytest.raises(ValueError, match="read-only"):
        arrays.writing(pa.py_buffer(b"ab"))
    assert arrays.reading(pa.array([1.0, 2.0])).tolist() == [1, 2]
