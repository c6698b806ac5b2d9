"""The gradients of models, and cases that are sequences of calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from collectives.bench.calls import Arrays, algorithm_of, bind
from collectives.bench.cases import IN_PLACE, OUT_OF_PLACE, Case
from collectives.bench.plan import Plan, cases, memory_needed
from collectives.bench.sequence import bind as sequence
from collectives.bench.traces import TRACES, buckets, gradients, shapes
from tests.collectives.groups import ranks

PARTS = (5, 1, 0, 700, 3, 90_000, 2)
PUBLISHED = {
    "resnet50": (25_557_032, 161, (1000,), (64, 3, 7, 7)),
    "bert-large": (335_141_888, 391, (1024,), (30522, 1024)),
    "vgg16": (138_357_544, 32, (1000,), (64, 3, 3, 3)),
    "mnist-cnn": (3_274_634, 8, (10,), (32, 1, 5, 5)),
}


def case(parts: tuple[int, ...] = PARTS, bucket: int = 0, size: int = 2) -> Case:
    return Case("allreduce", "float32", 4, "sum", -1, "auto", size, sum(parts), "model", parts, bucket)


@pytest.mark.parametrize("name", TRACES)
def test_published_numbers(name: str) -> None:
    parameters, tensors, last, first = PUBLISHED[name]
    assert (sum(gradients(name)), len(gradients(name))) == (parameters, tensors)
    assert shapes(name)[0] == first and shapes(name)[-1] == last
    assert gradients(name)[0] == last[0]


def test_the_documentation_has_the_same_numbers() -> None:
    text = (Path(__file__).parents[2] / "docs" / "benchmark.md").read_text()
    for name in TRACES:
        assert f"| `{name}` | {sum(gradients(name)):,} | {len(gradients(name))} |".replace(",", " ") in text


def test_no_such_model() -> None:
    with pytest.raises(ValueError, match="no trace 'alexnet'; there are resnet50"):
        shapes("alexnet")


@pytest.mark.parametrize(
    ("parts", "most", "found"),
    [
        ((1, 2, 3), 6, [(0, 3)]),
        ((1, 2, 3), 5, [(0, 2), (2, 3)]),
        ((9, 1, 1, 9, 9), 4, [(0, 1), (1, 3), (3, 4), (4, 5)]),
        ((4,), 1, [(0, 1)]),
    ],
)
def test_buckets(parts: tuple[int, ...], most: int, found: list[tuple[int, int]]) -> None:
    assert buckets(parts, most) == found


@pytest.mark.parametrize("name", TRACES)
def test_buckets_hold_everything_in_order(name: str) -> None:
    parts = gradients(name)
    found = buckets(parts, 1 << 20)
    assert [i for first, last in found for i in range(first, last)] == list(range(len(parts)))
    assert all(sum(parts[a:b]) <= 1 << 20 or b - a == 1 for a, b in found)


@pytest.mark.parametrize("bucket", [0, 1024, 1 << 20])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_sequence_is_like_one_call(bucket: int, in_place: bool) -> None:
    """With a system that doubles: each element once, whatever it is part of."""
    lengths: list[int] = []

    def one(part: Case, x: Any, y: Any) -> tuple[Callable[[], Any], Any]:
        assert part.count == len(x) == len(y) and not part.parts
        lengths.append(part.count)
        return lambda: np.multiply(x, 2, out=y), y

    inp = np.arange(sum(PARTS), dtype=np.float32)
    out = inp if in_place else np.zeros_like(inp)
    expected = 2 * inp
    call, result = sequence(case(bucket=bucket), inp, out, one)
    assert sum(lengths) == sum(PARTS)
    call()
    assert np.array_equal(result, expected)
    assert (result is inp) == (in_place or bucket > 0)


@pytest.mark.parametrize("place", [IN_PLACE, OUT_OF_PLACE])
@pytest.mark.parametrize("shared", [False, True])
def test_our_own(place: str, shared: bool) -> None:
    def body(comm: Communicator) -> list[tuple[int, str]]:
        reported = []
        for bucket in (0, 4096, 1 << 20):
            what = case((5, 1, 700, 3, 90_000, 2), bucket, comm.size)
            bound = bind(comm, what, place, Arrays.of(comm, what, shared, place == OUT_OF_PLACE))
            reported.append((bound.wrong(1) + bound.wrong(2), algorithm_of(comm, what)))
        return reported

    assert ranks(3, body, transport="auto") == [[(0, "6_calls"), (0, "3_buckets"), (0, "1_buckets")]] * 3


def test_lines_of_a_trace() -> None:
    plan = Plan(("allreduce",), (8,), traces=("vgg16", "mnist-cnn"), places=(IN_PLACE,), bucket=1 << 20)
    found = cases(plan, 2)
    assert [(c.trace, c.bucket, c.title) for c in found] == [
        (name, bucket, f"allreduce of the gradients of {name}")
        for name in ("vgg16", "mnist-cnn")
        for bucket in (0, 1 << 20)
    ]
    assert memory_needed(plan, 2) == 2 * (4 * 138_357_544 + (2 << 20))
