"""Collectives with a wire format: errors within the derived bounds, the same bits on all ranks, and refused arguments.

Invariant: expected values are computed here, in float64 from every rank's arrays, and encoded bytes by NumPy.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import collectives
from collectives import Communicator, DesyncError
from collectives.algorithms import registry
from collectives.arrays.wire import Format, WireName, format_of
from collectives.calls import wired
from collectives.calls.wired import divide
from collectives.native import _engine
from collectives.schedule.rounding import roundings
from collectives.schedule.table import parse
from tests.collectives.arrays.stand_in_cupy import StandInCupy
from tests.collectives.groups import outcomes, ranks

WIRES: list[WireName] = ["bf16", "fp16", "fp8", "int8"]
SMALL_SECTION = 64 << 10  # bytes
COUNTS = [0, 1, 255, 256, 257, 65_537]
_SMALLEST = {"bf16": 2.0**-133, "fp16": 2.0**-24, "fp8": 2.0**-118, "int8": 2.0**-118}
"""Numbers of about this size are rounded to zero, or to a multiple of it."""


@pytest.fixture(autouse=True)
def _small_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of a few sections take little time then."""
    monkeypatch.setattr(wired, "SECTION", SMALL_SECTION)


def data(rank: int, count: int) -> Any:
    """Random numbers; those of some blocks are a million times larger than those of others."""
    random = np.random.default_rng([rank, count])
    sizes = 10.0 ** random.integers(-3, 4, -(-count // 256))
    return (random.standard_normal(count) * np.repeat(sizes, 256)[:count]).astype(np.float32)


def largest(x: Any, form: Format) -> Any:
    """For each number the largest absolute value in its element."""
    padded = np.zeros(form.elements(x.size) * form.numbers)
    padded[: x.size] = np.abs(x.reshape(-1))
    return np.repeat(padded.reshape(-1, form.numbers).max(axis=1), form.numbers)[: x.size].reshape(x.shape)


def bound(inputs: list[Any], form: Format, times: int, factor: float | None = None) -> Any:
    """The largest error of a sum whose contributions are rounded so many times, after multiplication by `factor`."""
    total = sum(largest(x, form) for x in inputs)
    rounding = form.rounding + 2.0**-21  # of float32, too
    smallest = _SMALLEST[form.name] * len(inputs) ** 2 / (factor or form.factor(len(inputs)))
    return ((1 + rounding) ** times - 1) * total + smallest


def check(found: Any, inputs: list[Any], form: Format, times: int, op: str = "sum") -> None:
    divisor = len(inputs) if op == "avg" else 1
    exact = sum(x.astype(np.float64) for x in inputs) / divisor
    assert found.dtype == np.float32 and found.shape == exact.shape
    excess = np.abs(found - exact) - bound(inputs, form, times) / divisor
    assert excess.size == 0 or excess.max() <= 0, f"{form.name} {op}: {excess.max()} too far from the exact sum"


def same_bits(results: list[list[Any]]) -> None:
    for other in results[1:]:
        for x, y in zip(results[0], other, strict=True):
            assert x.tobytes() == y.tobytes()


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
def test_every_algorithm_stays_within_its_bound(transport: str, size: int) -> None:
    algorithms = registry.algorithms("allreduce", size)
    cases = [(a, wire, n) for a in algorithms for wire in WIRES[2:] for n in COUNTS]

    def body(comm: Communicator) -> list[Any]:
        return [comm.allreduce(data(comm.rank, n), algorithm=a.name, wire=wire) for a, wire, n in cases]

    results = ranks(size, body, transport=transport)
    same_bits(results)
    for (algorithm, wire, n), found in zip(cases, results[0], strict=True):
        check(found, [data(rank, n) for rank in range(size)], format_of(wire), roundings(algorithm, size))


@pytest.mark.parametrize("options", [{"segment": 100}, {"segment": 4000}, {"sockets": 3}])
@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
def test_blocks_that_links_deliver_in_parts(transport: str, options: dict[str, Any]) -> None:
    algorithms = registry.algorithms("allreduce", 3)

    def body(comm: Communicator) -> list[Any]:
        return [
            comm.allreduce(data(comm.rank, n), algorithm=a.name, wire=WIRES[3])
            for a in algorithms
            for n in (257, 9000, 300_000)
        ]

    results = ranks(3, body, transport=transport, **options)
    same_bits(results)
    plain = ranks(3, body, transport=transport)  # the bits do not depend on the parts
    same_bits([results[0], plain[0]])


@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_allreduce(size: int, wire: WireName, op: str) -> None:
    """Blocking, in the background, in place, into `out`, and in a block of calls; of several sections."""
    count = SMALL_SECTION // 4 * 9 + 77

    def body(comm: Communicator) -> list[Any]:
        x = data(comm.rank, count).reshape(3, -1) if count % 3 == 0 else data(comm.rank, count)
        kept, out, place = x.copy(), np.empty_like(x), x.copy()
        first = comm.allreduce(x, op, wire=wire)
        work = comm.allreduce_async(x, op, wire=wire)
        assert comm.allreduce(x, op, out=out, wire=wire) is out
        assert comm.allreduce(place, op, out=place, wire=wire) is place
        second = work.wait()
        assert work.done() and work.result() is second
        with comm.group():
            blocked = comm.allreduce(x, op, wire=wire)
            later = comm.allreduce_async(x, op, wire=wire)
        strided = comm.allreduce(np.repeat(x, 2, axis=-1)[..., ::2], op, wire=wire)
        np.testing.assert_array_equal(x, kept)
        for other in (second, out, place, blocked, later.result(), strided):
            assert other.tobytes() == first.tobytes()
        return [first]

    results = ranks(size, body)
    same_bits(results)
    times = max(roundings(a, size) for a in registry.algorithms("allreduce", size))
    check(results[0][0].reshape(-1), [data(rank, count) for rank in range(size)], format_of(wire), times, op)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
def test_reduce_scatter(transport: str, size: int) -> None:
    algorithms = registry.algorithms("reduce_scatter", size)
    cases = [(a, WIRES[3], n) for a in algorithms for n in COUNTS]
    cases += [(algorithms[0], wire, SMALL_SECTION) for wire in WIRES]

    def body(comm: Communicator) -> list[Any]:
        found = []
        for algorithm, wire, n in cases:
            x = data(comm.rank, n * size).reshape(size, n)
            for op in ("sum", "avg"):
                first = comm.reduce_scatter(x, op, algorithm=algorithm.name, wire=wire)
                second = comm.reduce_scatter_async(x, op, algorithm=algorithm.name, wire=wire)
                assert first.shape == (1, n) and first.tobytes() == second.result().tobytes()
                found.append(first)
        return found

    results = ranks(size, body, transport=transport)
    for i, (algorithm, wire, n) in enumerate(cases):
        inputs = [data(rank, n * size).reshape(size, n) for rank in range(size)]
        for j, op in enumerate(("sum", "avg")):
            for rank in range(size):
                rows = [x[rank : rank + 1] for x in inputs]
                found = results[rank][2 * i + j]
                check(found, rows, format_of(wire), roundings(algorithm, size), op)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("wire", WIRES)
def test_allgather(size: int, wire: WireName) -> None:
    form = format_of(wire)

    def body(comm: Communicator) -> list[Any]:
        found = []
        for n in (*COUNTS, SMALL_SECTION):
            x = data(comm.rank, n)
            first, out = comm.allgather(x, wire=wire), np.empty((size, n), np.float32)
            assert comm.allgather_async(x, out=out, wire=wire).result() is out
            assert out.tobytes() == first.tobytes()
            for rank in range(size):
                np.testing.assert_array_equal(first[rank], form.rounded(data(rank, n)))
            found.append(first)
        return found

    same_bits(ranks(size, body))


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("bucket_bytes", [1, 3000, 25 << 20])
def test_a_list(wire: WireName, bucket_bytes: int) -> None:
    shapes = [(3, 5), (), (70_000,), (0,), (200, 1000), (17,), (2, 3, 4), (300_000,), (1,)]

    def arrays(rank: int) -> list[Any]:
        return [data(rank, int(np.prod(shape))).reshape(shape) for shape in shapes]

    def body(comm: Communicator) -> list[Any]:
        mine = arrays(comm.rank)
        first = comm.allreduce_many(mine, "avg", wire=wire, bucket_bytes=bucket_bytes)
        second = comm.allreduce_many_async(mine, "avg", wire=wire, bucket_bytes=bucket_bytes)
        outs = [np.empty_like(x) for x in mine]
        assert [x is y for x, y in zip(comm.allreduce_many(mine, "avg", out=outs, wire=wire), outs, strict=True)]
        with comm.group():
            blocked = comm.allreduce_many(mine, "avg", wire=wire, bucket_bytes=bucket_bytes)
        same_bits([first, second.result(), blocked])
        comm.allreduce_many(mine, "avg", out=mine, wire=wire, bucket_bytes=bucket_bytes)
        same_bits([first, mine])
        assert comm.allreduce_many([], wire=wire) == []
        return first

    results = ranks(3, body)
    same_bits(results)
    times = max(roundings(a, 3) for a in registry.algorithms("allreduce", 3))
    for i, shape in enumerate(shapes):
        check(results[0][i].reshape(shape), [arrays(rank)[i] for rank in range(3)], format_of(wire), times, "avg")


def test_a_list_with_an_array_that_is_not_float32() -> None:
    def body(comm: Communicator) -> None:
        with pytest.raises(TypeError, match="array 1 of the list"):
            comm.allreduce_many([np.ones(3, np.float32), np.ones(3)], wire="int8")
        with pytest.raises(TypeError, match="list or tuple"):
            comm.allreduce_many(np.ones(3, np.float32), wire="int8")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="bucket_bytes"):
            comm.allreduce_many([np.ones(3, np.float32)], wire="int8", bucket_bytes=0)

    ranks(2, body)


def test_a_plan_reads_and_writes_the_same_arrays_again() -> None:
    def body(comm: Communicator) -> None:
        x = np.full(SMALL_SECTION, comm.rank + 1, np.float32)
        plan = comm.allreduce_plan(x, wire="int8")
        assert plan() is plan.out
        np.testing.assert_array_equal(plan.out, np.full_like(x, 3))
        x *= 2
        assert plan.start().wait() is plan.out
        np.testing.assert_array_equal(plan.out, np.full_like(x, 6))
        with pytest.raises(TypeError, match="NumPy"):
            comm.allreduce_plan([1.0], wire="int8")

    ranks(2, body)


@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
@pytest.mark.parametrize("wire", WIRES)
def test_a_plan_of_a_list_has_the_bits_of_the_call(wire: WireName, transport: str) -> None:
    counts = [7, 0, 300, 3 * SMALL_SECTION // 4, 1]  # one of them in several sections

    def body(comm: Communicator) -> list[Any]:
        xs = [data(comm.rank, count) for count in counts]
        plan = comm.allreduce_many_plan(xs, "avg", bucket_bytes=SMALL_SECTION, wire=wire)
        assert all(found is x for found, x in zip(plan.out, xs, strict=True))
        found: list[Any] = []
        for turn in range(4):
            for x, count in zip(xs, counts, strict=True):
                x[...] = data(comm.rank + 10 * turn, count)
            wanted = comm.allreduce_many(xs, "avg", bucket_bytes=SMALL_SECTION, wire=wire)
            if turn == 2:
                wanted = comm.allreduce_many(wanted, "avg", bucket_bytes=SMALL_SECTION, wire=wire)
                plan.start()  # the next run waits for this one
                results = plan.start().wait()
            else:
                results = plan() if turn % 2 else plan.start().wait()
            assert all(result is x for result, x in zip(results, xs, strict=True))
            same_bits([wanted, xs])
            found += wanted
        return found

    same_bits(ranks(3, body, transport=transport))


def test_what_a_plan_of_a_list_with_a_format_refuses() -> None:
    def body(comm: Communicator) -> None:
        x = data(comm.rank, 10)
        for wire in WIRES:
            with pytest.raises(TypeError, match="array 1 of the list"):
                comm.allreduce_many_plan([x, [1.0]], wire=wire)
            with pytest.raises(ValueError, match=r"array 1 of the list.*not contiguous"):
                comm.allreduce_many_plan([x, np.ones((4, 4), np.float32).T], wire=wire)
            with pytest.raises(TypeError, match="array 1 of the list has dtype float64"):
                comm.allreduce_many_plan([x, np.ones(3)], wire=wire)
            with pytest.raises(TypeError, match="list or tuple"):
                comm.allreduce_many_plan(x, wire=wire)
            with pytest.raises(ValueError, match="share memory"):
                comm.allreduce_many_plan([x, x[5:]], wire=wire)
            with pytest.raises(ValueError, match="sum and avg"):
                comm.allreduce_many_plan([x], "max", wire=wire)
            with pytest.raises(ValueError, match="bucket_bytes"):
                comm.allreduce_many_plan([x], wire=wire, bucket_bytes=0)
        with pytest.raises(ValueError, match="there are bf16"):
            comm.allreduce_many_plan([x], wire="int4")  # type: ignore[arg-type]
        assert comm.allreduce_many_plan([], wire="int8")() == []

    ranks(2, body)


def test_a_plan_of_a_list_with_a_format_differs_from_one_without() -> None:
    def body(comm: Communicator) -> None:
        wire: WireName | None = "int8" if comm.rank == 0 else None
        with pytest.raises(DesyncError, match="int8_blocks"):
            comm.allreduce_many_plan([data(comm.rank, 1000)], wire=wire)()

    ranks(2, body)


CHOOSING = parse(
    """
    allreduce       any  any  64K  float32  wire=auto : short
    allreduce       any  any  any  int8     wire=auto : measured
    reduce_scatter  any  any  any  bf16     wire=auto : measured
    allgather       any  any  64K  float32  wire=auto : short
    allgather       any  any  any  fp8      wire=auto : measured
    """
)


@pytest.mark.parametrize("size", [1, 3])
def test_auto_is_what_the_table_names(size: int) -> None:
    def body(comm: Communicator) -> list[Any]:
        found = []
        ways: list[tuple[int, WireName | None]] = [(0, None), (16 << 10, None), ((16 << 10) + 1, "int8")]
        for count, wire in ways:
            x, out = data(comm.rank, count), np.empty(count, np.float32)
            wanted = comm.allreduce(x, "avg", wire=wire)
            work = comm.allreduce_async(x, "avg", wire="auto")
            assert comm.allreduce(x, "avg", out=out, wire="auto") is out
            plan = comm.allreduce_plan(x, "avg", wire="auto")
            with comm.group():
                blocked = comm.allreduce(x, "avg", wire="auto", timeout=60.0)
                later = comm.allreduce_async(x, "avg", wire="auto")
            repeated = [comm.allreduce(x, "avg", wire="auto") for _ in range(3)]
            for other in (work.wait(), out, plan(), blocked, later.result(), *repeated):
                assert other.tobytes() == wanted.tobytes()
            found.append(wanted)
        lists: list[tuple[int, WireName | None]] = [(1000, None), (10_000, "int8")]
        for count, many in lists:  # 12 and 120 KB in each list
            arrays = [data(comm.rank, count), data(comm.rank, 2 * count)]
            first = comm.allreduce_many(arrays, wire="auto")
            same_bits(
                [first, comm.allreduce_many(arrays, wire=many), comm.allreduce_many_async(arrays, wire="auto").wait()]
            )
            planned = [x.copy() for x in arrays]
            same_bits([first, comm.allreduce_many_plan(planned, wire="auto")(), planned])
            found += first
        x = data(comm.rank, 300 * size).reshape(size, 300)
        rows = comm.reduce_scatter(x, wire="auto")
        assert rows.tobytes() == comm.reduce_scatter(x, wire="bf16").tobytes()
        assert rows.tobytes() == comm.reduce_scatter_async(x, wire="auto").wait().tobytes()
        for count, wire in (((16 << 10) // size, None), ((16 << 10) // size + 1, "fp8")):
            x = data(comm.rank, count)
            whole = comm.allgather(x, wire="auto")
            assert whole.tobytes() == comm.allgather(x, wire=wire).tobytes()
            assert whole.tobytes() == comm.allgather_async(x, wire="auto").wait().tobytes()
            found.append(whole)
        return found

    same_bits(ranks(size, body, table=CHOOSING))


def test_auto_refuses_nothing_that_none_accepts() -> None:
    everything = parse("allreduce any any any int8 wire=auto\nallgather any any any int8 wire=auto")

    def body(comm: Communicator) -> None:
        x = data(comm.rank, 1000)
        for array, op in ((x.astype(np.float64), "sum"), (np.arange(5), "sum"), (x, "max"), (x, np.minimum)):
            np.testing.assert_array_equal(comm.allreduce(array, op, wire="auto"), comm.allreduce(array, op))
            np.testing.assert_array_equal(
                comm.allreduce_async(array, op, wire="auto").wait(), comm.allreduce(array, op)
            )
        mixed = [x, x.astype(np.float64)]
        same_bits([comm.allreduce_many(mixed, wire="auto"), comm.allreduce_many(mixed)])
        assert comm.allreduce_many([], wire="auto") == []
        np.testing.assert_array_equal(comm.allgather(np.arange(3), wire="auto"), [np.arange(3)] * 2)
        shared = memoryview(x)  # not an array of NumPy's, and float32
        assert comm.allreduce(shared, wire="auto").tobytes() == comm.allreduce(x, wire="int8").tobytes()
        for wrong in (None, "text", object()):
            with pytest.raises(TypeError) as without:
                comm.allreduce(wrong)
            with pytest.raises(TypeError) as caught:
                comm.allreduce(wrong, wire="auto")
            assert str(caught.value) == str(without.value)
            with pytest.raises(TypeError, match="1"):
                comm.allreduce_many([x, wrong], wire="auto")
        with pytest.raises(TypeError, match="list or tuple"):
            comm.allreduce_many(x, wire="auto")
        with pytest.raises(ValueError, match="did you mean 'auto'"):
            comm.allreduce(x, wire="atuo")  # type: ignore[arg-type]

    ranks(2, body, table=everything)


def test_auto_sends_arrays_on_devices_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for CuPy, whose arrays are in host memory."""
    cupy = types.ModuleType("cupy")
    cupy.asarray = StandInCupy  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", cupy)

    def body(comm: Communicator) -> None:
        x = data(comm.rank, 1000)
        exact = comm.allreduce(x)
        with pytest.raises(TypeError, match="is on a device"):
            comm.allreduce(StandInCupy(x), wire="int8")
        found = comm.allreduce(StandInCupy(x), wire="auto")
        assert isinstance(found, StandInCupy) and found.memory.tobytes() == exact.tobytes()
        assert comm.allreduce_async(StandInCupy(x), wire="auto").wait().memory.tobytes() == exact.tobytes()
        out = StandInCupy(x)
        comm.allreduce(x, out=out, wire="auto")
        assert out.memory.tobytes() == exact.tobytes()
        outs = [StandInCupy(x), np.empty_like(x)]
        for other in comm.allreduce_many([x, x], out=outs, wire="auto"):
            assert (other.memory if other is outs[0] else other).tobytes() == exact.tobytes()

    ranks(2, body, table=parse("allreduce any any any int8 wire=auto"))


def test_without_measured_rows_auto_sends_numbers_as_they_are() -> None:
    def body(comm: Communicator) -> str:
        x = data(comm.rank, 100_000)
        assert comm.allreduce(x, wire="auto").tobytes() == comm.allreduce(x).tobytes()
        return comm.explain("allreduce", x.nbytes, wire="auto")

    for deterministic in (False, True):
        for text in ranks(2, body, deterministic=deterministic):
            assert "\n  wire        auto chooses float32: nobody has measured these links\n  row         " in text
            assert "allreduce any any any float32 wire=auto\n  from        built in\n" in text


def test_explain_says_which_format_is_chosen_and_why() -> None:
    def body(comm: Communicator) -> list[str]:
        with pytest.raises(ValueError, match="broadcast has no wire formats"):
            comm.explain("broadcast", 8, wire="auto")
        kinds = (("float32", 1 << 20), ("float32", 1 << 10), ("float64", 1 << 20))
        return [comm.explain("allreduce", nbytes, kind, wire="auto") for kind, nbytes in kinds]

    for long, short, wide in ranks(2, body, table=CHOOSING):
        row = "  row         allreduce any any any int8 wire=auto\n  from        argument table=\n"
        assert f"\n  wire        auto chooses int8: measured\n{row}  wire        int8: 266240 bytes, in " in long
        assert "auto chooses float32: short\n" in short and "wire        int8" not in short
        assert "auto: float64 is sent as it is" in wide


def test_a_lost_rank_is_named_and_later_calls_say_so() -> None:
    def body(comm: Communicator) -> None:
        x = np.ones(50 * SMALL_SECTION, np.float32)
        comm.allreduce(x, wire="int8")
        if comm.rank == 1:
            comm.close()
            return
        with pytest.raises(collectives.PeerLost):
            comm.allreduce(x, wire="int8")
        with pytest.raises(collectives.PeerLost):
            comm.allreduce_async(x, wire="int8").wait()

    ranks(2, body, transport="tcp")


def test_memory_is_used_again() -> None:
    with collectives.init(None) as comm:
        assert comm.memory()["encoded"] == 0
        for count in range(1, 300_000, 7001):
            comm.allreduce(np.ones(count, np.float32), wire="int8")
            comm.allreduce_many([np.ones(count, np.float32)] * 2, wire="bf16")
        assert 0 < comm.memory()["encoded"] < 4 << 20


def by_numpy(x: Any, wire: WireName, factor: float) -> Any:
    """What `Format.encode` writes, as bytes."""
    x = x * np.float32(factor)
    if wire == "bf16":
        return x.astype(ml_dtypes.bfloat16).view(np.uint8)
    if wire == "fp16":
        return x.astype(np.float16).view(np.uint8)
    most = np.float32({"fp8": 448, "int8": 127}[wire])
    rows = []
    for block in np.pad(x, (0, -x.size % 256)).reshape(-1, 256):
        top = np.abs(block).max()
        if not np.isfinite(top):
            scale, codes = np.float32(np.nan), np.zeros(256, np.uint8)
        elif top < 2.0**-118:
            scale, codes = np.float32(0), np.zeros(256, np.uint8)
        else:
            scale, scaled = top / most, block * (most / top)
            codes = np.rint(scaled).astype(np.int8) if wire == "int8" else scaled.astype(ml_dtypes.float8_e4m3fn)
        rows.append(np.concatenate([np.array([scale], np.float32).view(np.uint8), codes.view(np.uint8)]))
    return np.concatenate(rows)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("count", [1, 255, 256, 257, 100_000])
@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_encoded_bytes_are_numpys(wire: WireName, count: int, factor: float) -> None:
    form = format_of(wire)
    x = data(1, count)
    x[::7] *= 1e-4  # float8 numbers below the smallest normal one
    x[3::11] = 0
    encoded = np.empty(form.elements(count), form.element)
    form.encode(x, encoded, factor)
    np.testing.assert_array_equal(encoded.view(np.uint8), by_numpy(x, wire, factor))
    decoded = np.empty_like(x)
    form.decode(encoded, decoded, 1 / factor)
    assert (np.abs(decoded - x) <= bound([x], form, 1, factor)).all()
    np.testing.assert_array_equal(decoded, form.rounded(x, factor))


@pytest.mark.parametrize("wire", ["fp8", "int8"])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_numbers_that_are_not_finite_make_their_block_nan(wire: WireName, bad: float) -> None:
    def body(comm: Communicator) -> list[Any]:
        x = np.ones(1000, np.float32)
        if comm.rank == 1:
            x[300] = bad
        return [comm.allreduce(x, wire=wire)]

    results = ranks(3, body)
    same_bits(results)
    found = results[0][0]
    assert np.isnan(found[256:512]).all()
    np.testing.assert_allclose(np.delete(found, slice(256, 512)), 3, rtol=0.1)


@pytest.mark.parametrize("wire", ["bf16", "fp16"])
def test_infinities_stay_in_16_bits(wire: WireName) -> None:
    def body(comm: Communicator) -> list[Any]:
        return [comm.allreduce(np.array([np.inf, -np.inf, np.nan, 1], np.float32), wire=wire)]

    for (found,) in ranks(2, body):
        np.testing.assert_array_equal(found, np.array([np.inf, -np.inf, np.nan, 2], np.float32))


@pytest.mark.parametrize("wire", WIRES)
def test_a_sum_beyond_the_range_of_16_bits_is_finite(wire: WireName) -> None:
    def body(comm: Communicator) -> list[Any]:
        return [comm.allreduce(np.full(300, 60_000, np.float32), wire=wire)]

    for (found,) in ranks(4, body):
        np.testing.assert_allclose(found, 240_000, rtol=0.2)


@pytest.mark.parametrize("wire", ["fp8", "int8"])
def test_tiny_numbers_become_zero_and_larger_ones_do_not(wire: WireName) -> None:
    form = format_of(wire)
    for tiny in (0.0, -0.0, 1e-45, 1e-38, 2.0**-119):
        np.testing.assert_array_equal(form.rounded(np.full(256, tiny, np.float32)), np.zeros(256, np.float32))
    x = np.full(256, 2.0**-118, np.float32)
    np.testing.assert_allclose(form.rounded(x), x, rtol=1e-6)
    x[:] = np.finfo(np.float32).max / 2
    np.testing.assert_allclose(form.rounded(x), x, rtol=1e-6)


def test_the_blocks_of_an_array_do_not_depend_on_its_place_in_a_list() -> None:
    form = format_of("int8")
    sizes = [1000, 1, 300_000, 0, 77]
    for most in (256, 1024, 100_000, 1 << 20):
        seen: dict[int, list[tuple[int, int]]] = {}
        for section in divide(sizes, form, most):
            assert section.inp * 256 <= max(most, 256)
            at = 0
            for span in section.ins:
                assert span.at == at and span.start % 256 == 0
                at += form.elements(span.stop - span.start)
                seen.setdefault(span.array, []).append((span.start, span.stop))
            assert at == section.inp
        for array, size in enumerate(sizes):
            spans = seen.get(array, [])
            assert [start for start, _ in spans] == [0, *(stop for _, stop in spans[:-1])][: len(spans)]
            assert (spans[-1][1] if spans else 0) == size
    assert divide([], form, 1024) == divide([0], form, 1024)


def test_other_ranks_with_another_format_are_found() -> None:
    def body(comm: Communicator) -> None:
        wire: Any = ["int8", "fp8", None][comm.rank]
        comm.allreduce(np.ones(1000, np.float32), wire=wire)

    for outcome in outcomes(3, body):
        assert isinstance(outcome.error, DesyncError)


def test_other_ranks_with_another_length_are_found() -> None:
    def body(comm: Communicator) -> None:
        comm.allreduce(np.ones(SMALL_SECTION + comm.rank, np.float32), wire="int8")

    for outcome in outcomes(2, body):
        assert isinstance(outcome.error, DesyncError)


@pytest.mark.parametrize(
    ("x", "options", "error"),
    [
        (np.ones(3), {}, TypeError),
        (np.ones(3, np.float16), {}, TypeError),
        (np.ones(3, np.int32), {}, TypeError),
        (np.ones(3, np.float32), {"op": "max"}, ValueError),
        (np.ones(3, np.float32), {"op": np.add}, ValueError),
        (np.ones(3, np.float32), {"wire": "int4"}, ValueError),
        (np.ones(3, np.float32), {"wire": 8}, TypeError),
        (np.ones(3, np.float32), {"wire": []}, TypeError),
        (np.ones(3, np.float32), {"stream": 1}, ValueError),
        (np.ones(3, np.float32), {"algorithm": "best"}, ValueError),
        (np.ones(3, np.float32), {"out": np.ones(3)}, ValueError),
        ([1.0], {}, TypeError),
    ],
)
def test_refused_before_anything_is_sent(x: Any, options: dict[str, Any], error: type[Exception]) -> None:
    def body(comm: Communicator) -> None:
        for call in (comm.allreduce, comm.allreduce_async):
            with pytest.raises(error):
                call(x, **{"wire": "int8", **options})
        assert comm.allreduce(np.ones(2, np.float32), wire="int8").tolist() == [2, 2]

    ranks(2, body)


def test_users_cannot_pass_arrays_of_blocks() -> None:
    with collectives.init(None) as comm, pytest.raises(TypeError):
        comm.allreduce(np.zeros(3, format_of("int8").element))


def test_the_recorder_names_the_format() -> None:
    def body(comm: Communicator) -> None:
        comm.allreduce(np.ones(1000, np.float32), "avg", wire="int8")
        last = comm.dump()["operations"][-1]
        assert (last["collective"], last["dtype"], last["op"], last["count"]) == ("allreduce", "int8_blocks", "avg", 4)

    ranks(2, body)


def test_explain_says_what_is_sent_and_how_much_it_rounds() -> None:
    def body(comm: Communicator) -> None:
        text = comm.explain("allreduce", 1 << 20, algorithm="ring", wire="int8")
        assert "266240 bytes, in 16 sections" in text and "rounded 3 times" in text and "64 int8_blocks" in text
        assert "at most 0.012 of" in text
        assert "bfloat16" in comm.explain("reduce_scatter", 1000, wire="bf16")
        with pytest.raises(ValueError, match="broadcast has no wire formats"):
            comm.explain("broadcast", 1000, wire="int8")
        with pytest.raises(TypeError, match="float32"):
            comm.explain("allreduce", 1000, "float64", wire="int8")

    ranks(3, body)


def test_nothing_but_float32_arrays_is_encoded() -> None:
    form = format_of("int8")
    x = np.zeros(256, np.float32)
    blocks = np.zeros(1, form.element)
    with pytest.raises(TypeError):
        _engine.encode(blocks, x.astype(np.float64), form.code)
    with pytest.raises(ValueError, match="size"):
        _engine.encode(np.zeros(2, form.element), x, form.code)
    with pytest.raises(ValueError, match="encoded"):
        _engine.encode(blocks, x, _engine.DTYPES["float32"])
    x.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        _engine.decode(x, blocks, form.code)
