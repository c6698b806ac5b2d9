"""How a collective on device arrays is divided into slices."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from collectives.arrays.cuda import CudaArray
from collectives.calls.slices import NOTHING, Parts, Sliced, count_of, elements, parts

MIB = 1 << 20


@pytest.mark.parametrize(
    ("nbytes", "slices"),
    [(0, 1), (MIB - 1, 1), (4 * MIB, 4), (16 * MIB, 16), (64 * MIB, 16), (64 * MIB + 1, 17), (9 << 30, 9 << 8)],
)
def test_slices_have_from_one_to_four_mib(nbytes: int, slices: int) -> None:
    assert count_of(nbytes) == slices


@pytest.mark.parametrize("counts", [(1000,), (7, 7, 7), (0, 5, 1003), ((1 << 33) + 3,)])
@pytest.mark.parametrize("slices", [1, 3, 16])
def test_every_element_is_copied_once_to_where_its_slice_has_room(counts: tuple[int, ...], slices: int) -> None:
    """Also where addresses and numbers of elements need more than 32 bits."""
    address = 1 << 40
    whole = parts(CudaArray(address, (sum(counts),), np.dtype(np.float64), 0, 0, None), counts)
    one = Sliced(
        "alltoall", np.dtype(np.float64), "sum", 0, whole, whole, counts, 0, True, False, slices,
    )  # fmt: skip
    begin, end = 512, 512 + one.slot_bytes
    copied = []
    for index in range(slices):
        place = begin
        for offset, start, nbytes in one.fetched(index, begin):
            assert offset == place, "the parts of a slice lie one after another"
            place += nbytes
            copied.append((start, start + nbytes))
        assert place <= begin + one.input_bytes == begin + one.output_offset
        assert place - begin == 8 * elements(one.inp, index, slices)
        assert all(begin + one.input_bytes <= offset <= end - nbytes for offset, _, nbytes in one.put(index, begin))
    copied.sort()
    assert copied[0][0] == address and copied[-1][1] == address + 8 * sum(counts)
    assert all(a[1] == b[0] for a, b in pairwise(copied))


def test_parts_need_not_lie_one_after_another() -> None:
    """As in an allgather whose rows are those of every second rank."""
    places = Parts((1000, 3000), (100, 50))
    one = Sliced("allgather", np.dtype(np.int8), "sum", 0, NOTHING, places, (100, 50), 0, True, False, 2)
    assert one.put(0, 0) == [(0, 1000, 50), (50, 3000, 25)]
    assert one.put(1, 512) == [(512, 1050, 50), (562, 3025, 25)]


def test_ranks_agree_on_the_shape_of_a_slice() -> None:
    shares = (10, 0, 7)
    for index in range(4):
        shapes = [
            Sliced(
                "allgather",
                np.dtype(np.int8),
                "sum",
                0,
                Parts((0,), (shares[rank],)),
                NOTHING,
                shares,
                rank,
                True,
                False,
                4,
            ).shape(index)
            for rank in range(3)
        ]
        assert len({shape.out for shape in shapes}) == 1
        assert [shape.inp for shape in shapes] == list(shapes[0].out)  # type: ignore[arg-type]
