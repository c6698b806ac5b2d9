"""Inputs with a known result, held against NumPy in every order of reduction; and that nothing wrong is overlooked."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest

from collectives.arrays.array import dtype_of
from collectives.bench import values
from collectives.bench.cases import KINDS, Case
from collectives.bench.data import Data
from collectives.bench.plan import DTYPES, OPS
from collectives.bench.values import PERIOD, Values
from collectives.native import _engine

PAIRS = [(d, o) for d in DTYPES for o in OPS if _engine.supports(_engine.DTYPES[d], _engine.OPS[o])]


@pytest.mark.parametrize(("dtype", "op"), PAIRS)
def test_any_order_gives_the_known_result(dtype: str, op: str) -> None:
    """By the engine's own kernel, which rounds after each step when it is given two operands at a time."""
    kind = dtype_of(dtype)
    codes = _engine.DTYPES[dtype], _engine.OPS[op]
    for ranks in (1, 2, 3):
        data = Values(kind, op, ranks, salt=ranks, length=500)
        expected = data.total()
        for order in permutations(range(ranks)):
            got = data.table(order[0])
            if ranks == 1 and op in ("land", "lor", "lxor"):
                got = (got != 0).astype(kind)
            for number, rank in enumerate(order[1:], start=2):
                last = op == "avg" and number == ranks
                _engine.reduce(got, [got.copy(), data.table(rank)], *codes, 1 / ranks if last else 1.0)
            assert values.wrong(got, expected, slack=values.slack(kind, op, ranks)) == 0, (ranks, order)


@pytest.mark.parametrize("ranks", [1, 2, 7, 64, 128, 300])
def test_sums_stay_exact_in_the_smallest_format(ranks: int) -> None:
    for op in ("sum", "avg") if ranks <= 128 else ("sum",):
        data = Values(dtype_of("bfloat16"), op, ranks, salt=5, length=100)
        tables = [data.table(rank).astype(np.float64) for rank in range(ranks)]
        assert np.sum(np.abs(tables), axis=0).max() <= 256
        total = np.sum(tables, axis=0)
        np.testing.assert_array_equal(data.total().astype(np.float64), total / ranks if op == "avg" else total)


def test_values_differ_between_ranks_and_checks() -> None:
    tables = [Values(np.dtype(np.float32), "sum", 3, salt, 1000).table(rank) for salt in (0, 1) for rank in range(3)]
    for number, one in enumerate(tables):
        for other in tables[:number]:
            assert np.count_nonzero(one != other) > 900


@pytest.mark.parametrize("length", [1, 1000, PERIOD, 3 * PERIOD + 17])
@pytest.mark.parametrize("phase", [0, 5])
def test_a_single_wrong_element_is_found(length: int, phase: int) -> None:
    table = Values(np.dtype(np.int32), "sum", 2, 1, length + phase).table(0)
    array = np.empty(length, np.int32)
    values.fill(array, table, phase)
    assert values.wrong(array, table, phase) == 0
    for at in {0, length // 2, length - 1}:
        array[at] += 1
    assert values.wrong(array, table, phase) == len({0, length // 2, length - 1})


def test_data_in_the_wrong_place_is_found() -> None:
    data = Values(np.dtype(np.uint8), "none", 2, 1, 4 * PERIOD)
    array = np.empty(1 << 17, np.uint8)
    values.fill(array, data.table(0), phase=1 << 16)  # what belongs 64 KiB further on
    assert values.wrong(array, data.table(0)) > array.size * 0.9


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_spoiled_array_is_wrong_everywhere(dtype: str) -> None:
    table = Values(dtype_of(dtype), "none", 2, 1, 1000).table(1)
    array = np.empty(1000, dtype_of(dtype))
    values.spoil(array, table)
    assert values.wrong(array, table) == 1000


def test_what_is_not_a_number_is_wrong_even_where_there_is_slack() -> None:
    table = np.ones(10, np.float32)
    array = np.array([np.nan, np.inf, 1, 1 + 1e-7, 1.1, 1, 1, 1, 1, 1], np.float32)
    assert values.wrong(array, table, slack=1e-6) == 3


def _results(case: Case, inputs: list[Any]) -> list[Any]:
    """What each rank has to get, by NumPy alone."""
    n, count = case.ranks, case.count
    match case.collective:
        case "allreduce":
            return [np.sum(inputs, axis=0)] * n
        case "reduce":
            return [np.sum(inputs, axis=0) if rank == case.root else None for rank in range(n)]
        case "scan":
            return list(np.cumsum(inputs, axis=0))
        case "exscan":
            return [None, *np.cumsum(inputs, axis=0)[:-1]]
        case "reduce_scatter":
            return list(np.sum(inputs, axis=0).reshape(n, count))
        case "broadcast":
            return [inputs[case.root]] * n
        case "allgather":
            return [np.concatenate(inputs)] * n
        case "gather":
            return [np.concatenate(inputs) if rank == case.root else None for rank in range(n)]
        case "alltoall":
            return [np.concatenate([x.reshape(n, count)[rank] for x in inputs]) for rank in range(n)]
        case "scatter":
            return list(inputs[case.root].reshape(n, count))
    raise AssertionError(case)


@pytest.mark.parametrize("collective", [name for name in KINDS if name != "barrier"])
@pytest.mark.parametrize("count", [1, 5, 40_000])
def test_what_each_rank_has_to_get(collective: str, count: int) -> None:
    kind = KINDS[collective]
    case = Case(collective, "int64", 8, "sum" if kind.reduces else "none", 1 if kind.rooted else -1, "auto", 3, count)
    ranks = [Data(case, np.dtype(np.int64), rank, salt=4) for rank in range(3)]
    inputs = [np.full(case.elements_in, -1, np.int64) for _ in ranks]
    for data, array in zip(ranks, inputs, strict=True):
        data.fill(array)
    for data, result in zip(ranks, _results(case, inputs), strict=True):
        assert data.wrong(result) == 0
        if result is not None:
            assert data.wrong(result[:-1]) == data.wrong(None) == result.size
            spoiled = result.copy()
            spoiled[-1] += 1
            assert data.wrong(spoiled) == 1
            other = Data(case, np.dtype(np.int64), data.rank, salt=5)
            assert count == 1 or other.wrong(result) > result.size / 2
