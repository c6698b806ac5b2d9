"""Objects between ranks: what travels comes back as it was, what does not is refused on every rank, by type."""

from __future__ import annotations

import math
import pickle
from collections import OrderedDict, namedtuple
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from pathlib import Path
from typing import Any
from uuid import UUID

import ml_dtypes
import numpy as np
import pytest

from collectives import Aborted, Communicator
from collectives.gradients import objects
from collectives.gradients.encoding import decode, encode
from collectives.native.errors import DesyncError
from tests.collectives.groups import ranks

Point = namedtuple("Point", "x y")
Colour = IntEnum("Colour", "RED")

TRAVEL: list[Any] = [
    *(None, True, False, 0, 7, -1, 255, -(2**63), 10**400, 1e-300, float("inf"), -0.0, 1j),
    *("ä", "\ud800", "", b"", b"\0\xff"),
    *([], {}, (), set(), frozenset({1}), [float("inf")], {"a": [1, {"b": None}]}, [b"inside", (1, [2])]),
    *({1: 2}, {(1, "a"): {2, 3}, None: True}, OrderedDict([(2, 1), (1, 2)]), bytearray(b"ab")),
    *(range(1, 9, 2), slice(1, None)),
    *(Decimal("1.10"), Fraction(1, 3), UUID(int=5), date(2024, 2, 29), timedelta(-1, 2, 3)),
    *(datetime(2024, 2, 29, 1, 2, 3, 4), datetime(2024, 10, 27, 2, fold=1), time(1, 2)),
    *(np.float32(1.5), np.int8(-1), np.bool_(True), np.str_("x")),
    *(np.datetime64("2024-02-29", "D"), ml_dtypes.bfloat16(2)),
]  # fmt: skip

ARRAYS: list[Any] = [
    np.ones(2),
    np.arange(24, dtype=np.int16).reshape(2, 3, 4)[:, ::2],
    np.array(3.0),
    np.empty((0, 3), np.complex64),
    np.array(["a", "bcd"]),
    np.array([b"x"]),
    np.array([1, 2], "M8[ns]"),
    np.array([True, False]),
    np.array([1, 2, 3], ml_dtypes.bfloat16),
    np.array([1, -2], ml_dtypes.int4),
    np.array([1, 2], ml_dtypes.float8_e4m3fn),
]

CLASSES: list[Any] = [
    object(),
    Point(1, 2),
    Colour.RED,
    Path("x"),
    len,
    int,
    np.ma.masked_array([1]),
    {"deep": [object()]},
]
REFUSED: list[tuple[Any, str]] = [
    *((obj, "cannot travel between ranks") for obj in CLASSES),
    (np.array([object()]), "dtype object cannot travel"),
    (np.zeros(2, [("a", "i4")]), "cannot travel"),
    (datetime(2024, 1, 1, tzinfo=timezone.utc), "time zone"),
]


def holding_itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def same(found: Any, wanted: Any) -> bool:
    return type(found) is type(wanted) and bool(found == wanted) and repr(found) == repr(wanted)


@pytest.mark.parametrize("obj", TRAVEL, ids=repr)
def test_an_object_comes_back_as_it_was(obj: Any) -> None:
    assert same(decode(encode(obj)), obj)


def test_not_a_number_comes_back() -> None:
    assert math.isnan(decode(encode(float("nan"))))


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_an_array_comes_back_and_can_be_written(array: Any) -> None:
    found = decode(encode({"w": array}))["w"]
    assert type(found) is np.ndarray and found.dtype == array.dtype and found.shape == array.shape
    assert found.tobytes() == array.tobytes() and found.flags.writeable


def test_byte_order_becomes_this_machines() -> None:
    found = decode(encode(np.array([1, 2], ">i4")))
    assert found.tolist() == [1, 2] and found.dtype == np.dtype("<i4")


@pytest.mark.parametrize(("obj", "says"), REFUSED)
def test_what_is_refused(obj: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        encode(obj)


def test_an_object_that_holds_itself() -> None:
    with pytest.raises(ValueError, match="holds itself"):
        encode(holding_itself())


def test_between_ranks() -> None:
    sent = {1: ("a", {2}), "array": [1, 2]}

    def body(comm: Communicator) -> Any:
        mine = sent if comm.rank == 1 else object()  # which is not looked at
        return objects.broadcast_object(comm, mine, 1), objects.allgather_object(comm, {comm.rank: (comm.rank,)})

    for found, everyones in ranks(2, body):
        assert same(found, sent) and everyones == [{0: (0,)}, {1: (1,)}]


@pytest.mark.parametrize("refused", [object(), holding_itself()])
def test_every_rank_raises_where_one_cannot_send(refused: Any) -> None:
    def body(comm: Communicator) -> None:
        own = (TypeError, ValueError)
        with pytest.raises(own if comm.rank == 0 else Aborted):
            objects.broadcast_object(comm, refused)
        with pytest.raises(own if comm.rank == 1 else Aborted):
            objects.allgather_object(comm, refused if comm.rank else 1)
        assert objects.allgather_object(comm, comm.rank) == [0, 1]

    ranks(2, body)


class Executed:
    """What a pickle of it does where it is loaded."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('executed')",)


def test_what_is_no_object() -> None:
    whole = encode({"a": [1, (2.0, "x")], "w": np.ones(3)})
    cut = [whole[:end] for end in range(len(whole))]
    wrong = [b"x", b"c\x06Nobody", b"a\x02|O\x01\x01\x08" + b"\0" * 8, b"l" + b"\xff" * 10, b"l" * 500, b"d\x01l\x00N"]
    wrong += [
        whole + b"N",
        b"c\x08Fractiont\x02i\x01\x01i\x01\x00",
        b"c\x09bytearrayi\x01\x05",
        pickle.dumps(Executed()),
    ]
    for data in (*cut, *wrong):
        with pytest.raises(DesyncError, match="no object"):
            decode(data)


def test_no_byte_that_changes_on_its_way_does_more_than_change_the_object() -> None:
    """Whatever comes, decode gives an object of the listed types, or raises DesyncError."""
    whole = encode([{"a": 1, 2: (3.5, None)}, np.arange(3, dtype=np.int16), {4}, Decimal(1)])
    for at in range(len(whole)):
        for flip in (1, 0x10, 0x80, 0xFF):
            data = bytearray(whole)
            data[at] ^= flip
            try:
                decode(bytes(data))
            except DesyncError:
                continue
