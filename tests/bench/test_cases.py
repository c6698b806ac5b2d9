"""How bytes are counted."""

from __future__ import annotations

import pytest

from collectives.bench.cases import KINDS, Case, count_for


def case(collective: str, ranks: int, nbytes: int, itemsize: int = 4) -> Case:
    kind = KINDS[collective]
    return Case(collective, "float32", itemsize, "sum", 0, "auto", ranks, count_for(kind, nbytes, itemsize, ranks))


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("allreduce", 1.5),
        ("reduce_scatter", 0.75),
        ("allgather", 0.75),
        ("alltoall", 0.75),
        ("gather", 0.75),
        ("scatter", 0.75),
        ("broadcast", 1.0),
        ("reduce", 1.0),
    ],
)
def test_bandwidths_of_four_ranks(collective: str, factor: float) -> None:
    measured = case(collective, 4, 1 << 20)
    assert measured.nbytes == 1 << 20
    assert measured.algbw(0.001) == pytest.approx(1.048576)  # GB/s
    assert measured.busbw(0.001) == pytest.approx(1.048576 * factor)


def test_one_rank_has_no_bus() -> None:
    assert case("allreduce", 1, 1024).busbw(1e-6) == 0.0
    assert case("allgather", 1, 1024).busbw(1e-6) == 0.0


def test_a_barrier_has_no_bytes() -> None:
    barrier = case("barrier", 4, 0)
    assert (barrier.count, barrier.nbytes, barrier.algbw(1e-6), barrier.busbw(1e-6)) == (0, 0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("collective", "elements_in", "elements_out"),
    [
        ("allreduce", 24, 24),
        ("reduce", 24, 24),
        ("broadcast", 24, 24),
        ("allgather", 8, 24),
        ("gather", 8, 24),
        ("reduce_scatter", 24, 8),
        ("scatter", 24, 8),
        ("alltoall", 24, 24),
    ],
)
def test_size_is_that_of_the_larger_array(collective: str, elements_in: int, elements_out: int) -> None:
    measured = case(collective, 3, 24 * 4)
    assert (measured.elements_in, measured.elements_out) == (elements_in, elements_out)
    assert measured.nbytes == 24 * 4


def test_sizes_are_rounded_to_equal_parts() -> None:
    assert case("allgather", 3, 100).nbytes == 96
    assert case("allreduce", 3, 7).nbytes == 4
    assert case("allgather", 4, 1).count == 1  # never nothing
