"""Of which library an array is: types that other packages derive count as those of the library."""

from __future__ import annotations

import numpy as np
import pytest

import collectives
from collectives.arrays.located import is_device_array, library_of
from tests.collectives.arrays.stand_in_cupy import StandInCupy
from tests.collectives.groups import ranks


class Derived(StandInCupy):
    """An array type of a package that builds on CuPy's."""

    __module__ = "another.package"


def test_derived_types_are_of_their_library() -> None:
    assert library_of(StandInCupy) == library_of(Derived) == "cupy"
    assert library_of(np.ndarray) == "numpy"
    assert library_of(int) == "builtins"


def test_a_tensor_of_another_package_is_a_tensor() -> None:
    torch = pytest.importorskip("torch")
    mine = type("Mine", (torch.Tensor,), {"__module__": "another.package"})
    assert library_of(mine) == "torch"
    assert not is_device_array(torch.ones(2).as_subclass(mine))


def test_a_tensor_whose_dtype_has_no_name_in_the_interface() -> None:
    """Such as torch's float8_e4m3fn, of which torch itself raises KeyError."""

    class Tensor:
        is_cuda = True

        @property
        def __cuda_array_interface__(self) -> dict[str, object]:
            raise KeyError("torch.float8_e4m3fn")

    assert is_device_array(Tensor())


def test_an_array_of_a_derived_type_is_read_and_written() -> None:
    def rank(comm: collectives.Communicator) -> None:
        x, out = Derived(np.ones(3)), Derived(np.zeros(3))
        assert comm.allreduce(x, out=out) is out
        np.testing.assert_array_equal(out.memory, np.full(3, 2.0))

    ranks(2, rank)
