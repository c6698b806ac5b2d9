"""One memory under two addresses is one memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from collectives.arrays import array as arrays
from collectives.core.communicator import Communicator
from tests.collectives.groups import ranks


@pytest.fixture
def twice() -> Iterator[tuple[Any, Any]]:
    """Two arrays of 1024 doubles: the same shared memory, mapped twice."""
    with _mapped_twice() as both:
        yield both


class _mapped_twice:
    def __enter__(self) -> tuple[Any, Any]:
        descriptor = os.memfd_create("mapped twice")
        try:
            os.ftruncate(descriptor, 8192)
            self.maps = [mmap.mmap(descriptor, 8192) for _ in range(2)]
        finally:
            os.close(descriptor)
        first, second = (np.frombuffer(m, np.float64) for m in self.maps)
        first[0] = 7
        assert second[0] == 7
        return first, second

    def __exit__(self, *_: object) -> None: ...  # arrays may still refer to the mappings, which end with them


def test_two_mappings_are_told_from_two_arrays(twice: tuple[Any, Any]) -> None:
    x, out = twice
    with pytest.raises(ValueError, match="two mappings of the same memory"):
        arrays.in_place(x, out)
    with pytest.raises(ValueError, match="overlap in part"):
        arrays.in_place(x[:100], out[50:150])
    with pytest.raises(ValueError, match="allgather does not work in place"):
        arrays.separate(x[:10], out[5:25], "allgather")
    assert not arrays.in_place(x[:100], out[100:200])
    assert not arrays.in_place(x, np.zeros(1024))
    assert arrays.in_place(x, x[:])
    arrays.separate(x[:10], out[10:30], "allgather")


def test_mappings_of_different_memory_are_apart(twice: tuple[Any, Any]) -> None:
    with _mapped_twice() as (other, _):
        assert not arrays.in_place(twice[0], other)


def test_a_file_is_one_memory_too(tmp_path: Any) -> None:
    path = tmp_path / "numbers"
    first = np.memmap(path, np.float64, "w+", shape=(16,))
    second = np.memmap(path, np.float64, "r+", shape=(16,))
    with pytest.raises(ValueError, match="two mappings"):
        arrays.in_place(arrays.reading(first), arrays.writing(second).host)


def test_no_collective_takes_the_one_for_x_and_the_other_for_out() -> None:
    """Also where the same call with other arrays was right, which the engine then repeats by itself."""

    def body(comm: Communicator) -> None:
        with _mapped_twice() as (x, out):
            for _ in range(2):
                comm.allreduce(np.ones(1024), out=np.empty(1024))
                assert comm.allreduce(x, out=np.empty(1024))[0] == 14
            with pytest.raises(ValueError, match="two mappings"):
                comm.allreduce(x, out=out)
            with pytest.raises(ValueError, match="two mappings"):
                comm.allreduce_many([x], out=[out])
            with pytest.raises(ValueError, match=r"shares? memory"):
                comm.allreduce_many([x[:8], np.ones(8)], out=[np.empty(8), out[:8]])
            comm.barrier()

    ranks(2, body)


def test_shared_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.zeros(8).share_memory_()
    assert arrays.in_place(arrays.reading(x), arrays.writing(x).host)
    again = torch.UntypedStorage._new_shared_fd_cpu(*x.untyped_storage()._share_fd_cpu_())
    y = torch.empty(0).set_(again)
    x[0] = 3
    assert y[0] == 3
    if y.data_ptr() == x.data_ptr():
        pytest.skip("torch gave the mapping that it had")
    with pytest.raises(ValueError, match="two mappings"):
        arrays.in_place(arrays.reading(x), arrays.writing(y).host)
