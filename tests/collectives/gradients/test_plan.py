"""Plans: buckets, what ranks compare, and what a reader is told of differences."""

from __future__ import annotations

import dataclasses
import json

import ml_dtypes
import numpy as np
import pytest

from collectives.arrays.array import Dtype
from collectives.arrays.wire import WireName
from collectives.gradients.plan import Bucket, Entry, Plan, differences, plan, sizes, unpack
from collectives.gradients.wire import Rules, Wire, settled, wire


def dense(*shape: int, name: str = "", dtype: str = "float32") -> Entry:
    return Entry(name, "dense", dtype, shape)


SPARSE = Entry("table", "sparse", "float32", (-1, 3), "int64")
NONE = Entry("unused", "none")


def made(*entries: Entry, size: int = 2, **rules: object) -> Plan:
    return plan(Rules(**rules), entries, size)  # type: ignore[arg-type]


def places(found: Plan) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [bucket[1:] for bucket in found.buckets]


def test_buckets_are_in_reverse_order() -> None:
    entries = [dense(4), dense(4), dense(4), dense(4), dense(4)]
    assert places(made(*entries, bucket_bytes=32)) == [((4, 3), ()), ((2, 1), ()), ((0,), ())]
    assert places(made(*entries, bucket_bytes=31)) == [((i,), ()) for i in (4, 3, 2, 1, 0)]
    assert places(made(*entries)) == [((4, 3, 2, 1, 0), ())]
    assert [bucket.number for bucket in made(*entries, bucket_bytes=32).buckets] == [0, 1, 2]


def test_one_larger_than_a_bucket_goes_alone() -> None:
    assert places(made(dense(2), dense(100), dense(2), bucket_bytes=16)) == [((2,), ()), ((1,), ()), ((0,), ())]


def test_buckets_hold_bytes_of_the_wire() -> None:
    entries = [dense(4), dense(4), dense(4, dtype="int32"), dense(4, dtype="float64")]
    assert places(made(*entries, op="sum", bucket_bytes=32)) == [((3,), ()), ((2, 1), ()), ((0,), ())]
    half = made(*entries, op="sum", bucket_bytes=32, compression="fp16")
    assert places(half) == [((3, 2, 1), ()), ((0,), ())]


def test_sparse_ones_travel_at_their_moment_and_none_not_at_all() -> None:
    found = made(SPARSE, dense(4), NONE, SPARSE, dense(4), bucket_bytes=16)
    assert places(found) == [((4,), (3,)), ((1,), (0,))]
    assert [w if w is None else w.op for w in found.wires] == ["join", "avg", None, "join", "avg"]


def test_there_is_always_a_bucket() -> None:
    assert places(made()) == places(made(NONE)) == [((), ())]
    assert places(made(SPARSE)) == [((), (0,))]


def test_lengths_that_are_not_known_are_not_cut() -> None:
    assert places(made(dense(4), dense(-1), dense(4), bucket_bytes=1)) == [((2, 1, 0), ())]
    unknown_rows = Entry("", "sparse", "float32", (-1, -1), "int32")
    assert places(made(dense(4), unknown_rows, dense(4), bucket_bytes=1)) == [((2, 0), (1,))]


def test_digests_leave_names_out_and_nothing_else() -> None:
    base = made(dense(4, name="a"), SPARSE, NONE, bucket_bytes=64)
    assert base.digest == made(dense(4, name="b"), SPARSE._replace(name="c"), NONE, bucket_bytes=64).digest
    assert base.digest == made(dense(4), SPARSE, NONE, bucket_bytes=65).digest  # the buckets are the same
    others = [
        made(dense(5), SPARSE, NONE),
        made(dense(4, dtype="float64"), SPARSE, NONE),
        made(dense(4), SPARSE, dense(1)),
        made(dense(4), SPARSE._replace(indices="int32"), NONE),
        made(dense(4), SPARSE._replace(shape=(-1, 4)), NONE),
        made(dense(4), SPARSE),
        made(SPARSE, dense(4), NONE),
        *(
            made(dense(4), SPARSE, NONE, **rules)
            for rules in ({"op": "sum"}, {"compression": "fp16"}, {"prescale": 2.0}, {"postscale": 2.0})
        ),
    ]
    digests = {found.digest for found in (base, *others)}
    assert len(digests) == len(others) + 1
    assert made(dense(4), dense(4), bucket_bytes=16).digest != made(dense(4), dense(4), bucket_bytes=32).digest
    assert all(-(2**63) <= part < 2**63 for digest in digests for part in digest)


def test_packed_plans_come_back() -> None:
    found = made(dense(4, name="ä"), SPARSE, NONE, bucket_bytes=8, compression="bf16", prescale=1 / 3)
    again = unpack(found.pack(), 2)
    assert dataclasses.asdict(again) == dataclasses.asdict(found)
    assert again.digest == found.digest and again.wires == found.wires
    assert isinstance(again.buckets[0], Bucket)


@pytest.mark.parametrize(
    "change",
    [
        {"entries": 3},
        {"entries": [["a", "dense"]]},
        {"entries": [["a", "thick", "float32", [1], ""]]},
        {"entries": [["a", "dense", "float32", [1.5], ""]]},
        {"entries": [["a", "dense", "float32", [-2], ""]]},
        {"rules": {"op": "average", "more": 1}},
        {"rules": {"op": "guess"}},
        {"buckets": [[0, [7], []]]},
        {"buckets": [[0, [], [0]]]},
        {"buckets": [[0, [1], []]]},
    ],
)
def test_what_is_no_plan_is_refused(change: dict[str, object]) -> None:
    reported = json.loads(made(dense(4), SPARSE).pack())
    unpack(json.dumps(reported).encode(), 2)
    with pytest.raises(ValueError):
        unpack(json.dumps({**reported, **change}).encode(), 2)
    with pytest.raises(ValueError):
        unpack(b"nonsense", 2)


def test_differences_are_told_by_variable_and_rank() -> None:
    kernel = dense(10, 4, name="dense_1/kernel")
    plans = {
        0: made(NONE, kernel),
        1: made(NONE, kernel),
        2: made(NONE, kernel._replace(kind="none", dtype="", shape=())),
    }
    assert differences(plans) == "variable 1 'dense_1/kernel' is float32[10, 4] on ranks 0, 1 and None on rank 2"
    plans = {0: made(dense(-1)), 1: made(SPARSE, kernel, op="sum")}
    assert differences(plans) == (
        "op is 'avg' on rank 0 and 'sum' on rank 1; the number of variables is 1 on rank 0 and 2 on rank 1; "
        "variable 0 'table' is float32[?] on rank 0 and sparse float32[?, 3] on rank 1; "
        "variable 1 'dense_1/kernel' is not there on rank 0 and float32[10, 4] on rank 1"
    )
    known, unknown = made(dense(4), dense(4), bucket_bytes=16), made(dense(-1), dense(-1), bucket_bytes=16)
    ran = dataclasses.replace(unknown, entries=known.entries)
    assert "so their buckets differ" in differences({0: known, 1: ran})


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 100])
def test_halves_never_overflow_on_their_way(size: int) -> None:
    way = wire(Rules(compression="fp16"), np.dtype(np.float32), size, False, "")
    assert way.op == "sum" and way.dtype == np.float16
    largest = np.float16(np.float32(65504) * np.float32(way.before))
    total = np.float16(0)
    for _ in range(size):
        total += largest
    assert np.isfinite(total)
    assert float(total) * way.after == pytest.approx(65504, rel=2e-3)
    assert np.log2(way.before) == int(np.log2(way.before))  # exact


def test_ways() -> None:
    single, double, half = (np.dtype(t) for t in (np.float32, np.float64, np.float16))
    bfloat = np.dtype(ml_dtypes.bfloat16)
    assert wire(Rules(), single, 4, False, "") == Wire(single, single, "avg", 1.0, 1.0)
    assert wire(Rules("avg", "bf16"), double, 4, False, "") == Wire(double, bfloat, "avg", 1.0, 1.0)
    assert wire(Rules("sum", "fp16"), single, 4, False, "") == Wire(single, half, "sum", 0.25, 4.0)
    assert wire(Rules("average"), half, 4, False, "") == Wire(half, half, "sum", 0.25, 1.0)
    assert wire(Rules("sum"), half, 4, False, "") == Wire(half, half, "sum", 1.0, 1.0)  # its own result, as it is
    assert wire(Rules("max", "fp16"), single, 4, False, "") == Wire(single, half, "max", 1.0, 1.0)
    assert wire(Rules("average", prescale=3.0, postscale=0.5), single, 4, True, "") == Wire(
        single,
        single,
        "join",
        3.0,
        0.125,
    )
    assert wire(Rules("avg", "int8"), double, 4, False, "") == Wire(double, single, "avg", 1.0, 1.0, "int8")
    assert wire(Rules("sum", "fp8"), single, 4, True, "") == Wire(single, single, "join", 1.0, 1.0)  # sparse
    assert wire(Rules("avg", "int8"), half, 4, False, "").format is None
    x = np.linspace(-1, 1, 300, dtype=np.float32)
    way = wire(Rules("avg", "int8"), single, 4, False, "")
    assert way.rounds and way.nbytes(x) == 520 and 0 < np.abs(way.rounded(x) - x).max() <= 1 / 254
    assert not wire(Rules(), single, 4, False, "").rounds and wire(Rules("avg", "bf16"), single, 4, False, "").rounds
    whole, truth = np.dtype(np.int32), np.dtype(np.bool_)
    assert wire(Rules("avg", "bf16"), whole, 2, False, "") == Wire(whole, whole, "avg", 1.0, 1.0)
    for dtype, sparse, what in ((truth, False, "bool"), (whole, True, "sparse int32")):
        with pytest.raises(TypeError, match=f"x is {what}, of which there is no average"):
            wire(Rules(), dtype, 2, sparse, "x")
    with pytest.raises(TypeError, match="which prescale and postscale cannot multiply"):
        wire(Rules("sum", prescale=2.0), np.dtype(np.bool_), 2, False, "x")
    with pytest.raises(ValueError, match="sparse_as_dense=True"):
        wire(Rules("min"), single, 2, True, "x")


def test_auto_stands_for_one_format_for_all_gradients() -> None:
    """By the bytes of a full bucket; sparse gradients, and those of other dtypes, do not count."""
    asked: list[tuple[str, int]] = []

    def choose(collective: str, nbytes: int) -> WireName | None:
        asked.append((collective, nbytes))
        return "int8" if nbytes >= 1000 else None

    dense: list[tuple[Dtype, int]] = [
        (np.dtype(np.float32), 200),
        (np.dtype(np.float64), 100),
        (np.dtype(np.int64), 10_000),
    ]
    assert settled(Rules(compression="auto"), dense, choose) == Rules(compression="int8")
    assert settled(Rules(compression="auto"), dense[:1], choose) == Rules()
    assert settled(Rules(compression="auto", bucket_bytes=64), dense, choose) == Rules(bucket_bytes=64)
    assert asked == [("allreduce", 1200), ("allreduce", 800), ("allreduce", 64)]
    assert settled(Rules("max", "auto"), dense, choose) == Rules("max")
    kept = Rules(compression="fp8")
    assert settled(kept, dense, choose) is kept
    entries = (Entry("", "dense", "float32", (2, 3)), Entry("", "sparse", "float32", (-1, 2)), Entry("", "none"))
    assert sizes((*entries, Entry("", "dense", "float32", (-1, 2)))) == [(np.dtype(np.float32), 6)]


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ({"op": "mean"}, "op must be one of"),
        ({"compression": "int4"}, "compression must be None, 'fp16', 'bf16', 'fp8', 'int8'"),
        ({"compression": "int8", "op": "max"}, "is for op 'average' or 'sum'"),
        ({"bucket_bytes": 0}, "bucket_bytes must be"),
        ({"bucket_bytes": 1.5}, "bucket_bytes must be"),
    ],
)
def test_rules_that_cannot_be(rules: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Rules(**rules)  # type: ignore[arg-type]
