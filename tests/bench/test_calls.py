"""Arrays that calls are timed on."""

from __future__ import annotations

import pytest

from collectives import Communicator
from collectives.bench.calls import Arrays
from collectives.bench.cases import Case
from tests.collectives.groups import ranks


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_timed_are_no_zeros(shared: bool) -> None:
    """Memory that takes these faster would make any system look better than it is."""

    def body(comm: Communicator) -> None:
        case = Case("allgather", "float32", 4, "none", -1, "auto", comm.size, 1000)
        arrays = Arrays.of(comm, case, shared, needs_out=True)
        assert arrays.inp.all() and arrays.out.all()

    ranks(2, body, transport="shm")
