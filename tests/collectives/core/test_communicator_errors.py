"""What a communicator refuses, and what its ranks are told when something is wrong with one of them."""

from __future__ import annotations

import itertools
import math
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import collectives
from collectives import Communicator
from collectives.calls.fusion import Step
from collectives.calls.wired import WiredCall
from tests.collectives.groups import nothing_left, outcomes, ranks
from tests.warm.parents import python

ONES = np.ones(4, np.float32)


def read_only() -> Any:
    x = np.ones(4, np.float32)
    x.flags.writeable = False
    return x


FROZEN, FIVE, TWICE = read_only(), np.ones(5), np.ones((2, 4))


BAD_CALLS: list[tuple[str, Callable[[Any], Any], type[Exception], str]] = [
    ("object dtype", lambda c: c.allreduce(np.array([None])), TypeError, "x has dtype object"),
    ("list", lambda c: c.allreduce([1.0, 2.0]), TypeError, "x is a list"),
    ("byte order", lambda c: c.allreduce(ONES.astype(">f4")), TypeError, "byte order"),
    ("unknown op", lambda c: c.allreduce(ONES, "plus"), ValueError, "unknown op 'plus'; there are sum, prod"),
    ("op of no type", lambda c: c.allreduce(ONES, ["sum"]), TypeError, "op must be a name"),
    ("op for dtype", lambda c: c.allreduce(ONES, "band"), TypeError, "'band' has no meaning for dtype float32"),
    ("avg of bool", lambda c: c.allreduce(np.ones(3, bool), "avg"), TypeError, "no meaning for dtype bool; .*: sum"),
    ("min of complex", lambda c: c.reduce(np.ones(3, complex), "min"), TypeError, "no meaning for dtype complex128"),
    ("unknown algorithm", lambda c: c.allreduce(ONES, algorithm="magic"), ValueError, "'magic'.*there are: .*ring"),
    ("algorithm type", lambda c: c.allreduce(ONES, algorithm=3), TypeError, "algorithm must be a name"),
    ("algorithm list", lambda c: c.allreduce(ONES, algorithm=["ring"]), TypeError, "algorithm must be a name"),
    ("uneven algorithm", lambda c: c.alltoallv(ONES, [2, 2], algorithm="bruck"), ValueError, "with unequal parts"),
    ("read-only out", lambda c: c.allreduce(ONES, out=read_only()), ValueError, "out is read-only"),
    ("read-only in place", lambda c: c.allreduce(FROZEN, out=FROZEN), ValueError, "x is read-only"),
    ("strided out", lambda c: c.allreduce(ONES, out=np.ones(8, np.float32)[::2]), ValueError, "not contiguous"),
    ("out shape", lambda c: c.allreduce(ONES, out=np.ones(5, np.float32)), ValueError, r"out has shape \(5,\)"),
    ("out dtype", lambda c: c.allreduce(ONES, out=np.ones(4)), ValueError, "out has dtype float64"),
    ("out overlaps", lambda c: c.allreduce(FIVE[:4], out=FIVE[1:]), ValueError, "overlap in part"),
    ("out of reduce", lambda c: c.reduce(ONES, out=np.ones(5, np.float32)), ValueError, "out has shape"),
    ("allgather shape", lambda c: c.allgather(ONES, out=np.ones(8, np.float32)), ValueError, r"shape \(2, 4\)"),
    ("allgather overlap", lambda c: c.allgather(TWICE[0], out=TWICE), ValueError, "in place"),
    ("rest", lambda c: c.reduce_scatter(np.ones(5)), ValueError, "5 among 2 ranks"),
    ("rest of alltoall", lambda c: c.alltoall(np.ones(5)), ValueError, "5 among 2 ranks"),
    ("0-d reduce_scatter", lambda c: c.reduce_scatter(np.array(5.0)), ValueError, "0-d"),
    ("0-d allgatherv", lambda c: c.allgatherv(np.array(5.0)), ValueError, "0-d"),
    ("root too large", lambda c: c.broadcast(ONES.copy(), 2), ValueError, "root is 2, but ranks .* 0 to 1"),
    ("root negative", lambda c: c.gather(ONES, -1), ValueError, "root is -1"),
    ("root is a bool", lambda c: c.reduce(ONES, root=True), TypeError, "root must be an int, not bool"),
    ("root is a float", lambda c: c.scatter(ONES, 1.0), TypeError, "root must be an int, not float"),
    ("broadcast a list", lambda c: c.broadcast([1]), TypeError, "x is a list"),
    ("send too far", lambda c: c.send(ONES, 7), ValueError, "dest is 7"),
    ("recv from nobody", lambda c: c.recv(ONES.copy(), -1), ValueError, "source is -1"),
    ("recv read-only", lambda c: c.recv(read_only(), 1 - c.rank), ValueError, "out is read-only"),
    ("recv scalar", lambda c: c.recv(np.float32(1), 1 - c.rank), TypeError, "NumPy scalar"),
    ("counts", lambda c: c.alltoallv(ONES, [1, 2]), ValueError, "add up to 3, but x has 4 rows"),
    ("negative counts", lambda c: c.alltoallv(ONES, [5, -1]), ValueError, "negative"),
    ("too many counts", lambda c: c.alltoallv(ONES, [1, 1, 2]), ValueError, "each of the 2 ranks"),
    ("float counts", lambda c: c.alltoallv(ONES, [2.0, 2.0]), TypeError, "integers"),
    ("NaN timeout", lambda c: c.allreduce(ONES, timeout=math.nan), ValueError, "timeout is nan"),
    ("negative timeout", lambda c: c.barrier(timeout=-1), ValueError, "timeout is -1"),
    ("timeout type", lambda c: c.barrier(timeout="5"), TypeError, "seconds"),
    ("async", lambda c: c.allreduce_async(ONES, "plus"), ValueError, "unknown op"),
    ("color", lambda c: c.split("red"), TypeError, "color must be an int"),
    ("key", lambda c: c.split(1, 0.5), TypeError, "key must be an int"),
    ("empty shape", lambda c: c.empty((2, -1)), ValueError, "negative extent"),
    ("empty dtype", lambda c: c.empty(2, "float8"), TypeError, r"'float8' is not supported.*; there are float16"),
    ("explain what", lambda c: c.explain("allreduction", 8), ValueError, "allreduce"),
    ("explain size", lambda c: c.explain("allreduce", -8), ValueError, "nbytes"),
]


@pytest.mark.parametrize(("call", "error", "words"), [b[1:] for b in BAD_CALLS], ids=[b[0] for b in BAD_CALLS])
def test_bad_arguments_are_refused_before_anything_is_sent(
    call: Callable[[Communicator], Any], error: type[Exception], words: str
) -> None:
    def body(comm: Communicator) -> None:
        comm.allreduce(ONES)
        comm.allreduce(ONES, out=np.empty_like(ONES))
        sent = comm._linked.group.bytes_sent()
        with pytest.raises(error, match=words):
            call(comm)
        assert comm._linked.group.bytes_sent() == sent
        assert comm.allreduce(ONES).tolist() == [2, 2, 2, 2]

    with nothing_left():
        ranks(2, body)


def test_a_scatter_whose_root_is_wrong_keeps_nobody_waiting() -> None:
    bad = [("x", np.array(1.0)), ("x", np.ones(2)), ("x", None), ("x", np.ones((3, 2), ">f4"))]

    def body(comm: Communicator) -> list[str]:
        seen = []
        for _, x in bad:
            with pytest.raises((ValueError, TypeError, collectives.Aborted)) as caught:
                comm.scatter(x if comm.rank == 1 else None, root=1)
            seen.append(f"{type(caught.value).__name__}: {caught.value}")
        with pytest.raises((ValueError, collectives.Aborted)) as caught:
            comm.scatterv(np.ones(5) if comm.rank == 1 else None, [1, 1, 2] if comm.rank == 1 else None, root=1)
        seen.append(f"{type(caught.value).__name__}: {caught.value}")
        assert comm.scatter(np.arange(3) if comm.rank == 0 else None).tolist() == comm.rank
        return seen

    first, root, third = ranks(3, body)
    assert all(text.startswith(("Aborted: scatter: rank 1, the root", "Aborted: scatterv: rank 1")) for text in first)
    assert third == first
    assert [text.partition(":")[0] for text in root] == [
        "ValueError",
        "ValueError",
        "TypeError",
        "TypeError",
        "ValueError",
    ]


@pytest.mark.parametrize(
    "call",
    [
        lambda c, x: c.allgatherv(x),
        lambda c, x: c.gatherv(x, 1),
        lambda c, x: c.alltoallv(x, [len(x), 0, 0]),
    ],
)
@pytest.mark.parametrize("odd", [np.ones((2, 4)), np.ones((2, 3), np.float32), np.ones(2)])
def test_rows_that_differ_are_seen_by_every_rank(call: Callable[[Communicator, Any], Any], odd: Any) -> None:
    def body(comm: Communicator) -> None:
        with pytest.raises(collectives.DesyncError, match="rows of another shape or dtype"):
            call(comm, odd if comm.rank == 2 else np.ones((1, 3)))
        assert comm.allreduce(ONES)[0] == 3

    ranks(3, body)


@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda c: c.allreduce(np.ones(3)), lambda c: c.allreduce(np.ones(4))),
        (lambda c: c.allreduce(np.ones(3)), lambda c: c.allreduce(np.ones(3, np.int64))),
        (lambda c: c.allreduce(np.ones(3)), lambda c: c.allreduce(np.ones(3), "max")),
        (lambda c: c.allreduce(np.ones(3)), lambda c: c.allgather(np.ones(3))),
        (lambda c: c.allreduce(np.ones(3)), lambda c: c.allreduce(np.ones(3), algorithm="two_shot")),
        (lambda c: c.broadcast(np.ones(3), 0), lambda c: c.broadcast(np.ones(3), 1)),
        (lambda c: c.scatter(np.ones(3), 0), lambda c: c.broadcast(np.ones(3), 0)),
    ],
    ids=["count", "dtype", "op", "collective", "algorithm", "root", "header"],
)
def test_ranks_that_call_different_things_are_told(
    transport: str, one: Callable[[Communicator], Any], other: Callable[[Communicator], Any]
) -> None:
    def body(comm: Communicator) -> None:
        (other if comm.rank == 1 else one)(comm)
        comm.barrier()  # a root may have sent all it had to say, and go on

    found = outcomes(3, body, transport=transport)
    assert all(o.error is not None for o in found)
    assert all(o.seconds < 20 for o in found)  # without a wait for the deadline
    kinds = [type(o.error) for o in found]
    assert kinds == [collectives.DesyncError] * 3, found


@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
def test_the_rank_that_was_lost_first_is_named(transport: str) -> None:
    """Also by rank 2, which waits for rank 0 alone: that has given up because it waited for rank 1."""

    def body(comm: Communicator) -> collectives.PeerLost | None:
        if comm.rank == 1:
            return None
        with pytest.raises(collectives.PeerLost) as caught:
            comm.recv(np.empty(1), source=1 - comm.rank // 2)
        return caught.value

    first, _, last = ranks(3, body, transport=transport)
    assert first is not None and list(first.ranks) == [1]
    assert last is not None and list(last.ranks) == [1]
    assert re.match(r"rank 1( \(.*\))? is gone during operation 0: .*rank 0 ", str(last)), last


@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
def test_the_rank_that_was_lost_first_is_named_by_who_gets_half_a_message(transport: str) -> None:
    """Rank 0 sends more than the connection holds when it gives up for the loss of rank 1."""
    sending, given_up = threading.Event(), threading.Event()

    def body(comm: Communicator) -> collectives.PeerLost | None:
        large = np.ones(8 << 20)
        comm.barrier()
        if comm.rank == 1:
            assert sending.wait(30)
            time.sleep(0.2)  # until the connection is full
            return None
        if comm.rank == 0:
            lost = comm.recv_async(np.empty(1), source=1)
            comm.send_async(large, 2)
            sending.set()
        else:
            assert given_up.wait(30)
        with pytest.raises(collectives.PeerLost) as caught:
            lost.wait() if comm.rank == 0 else comm.recv(large, source=0)
        given_up.set()
        return caught.value

    first, _, last = ranks(3, body, transport=transport)
    assert first is not None and list(first.ranks) == [1]
    assert last is not None and list(last.ranks) == [1], last


KILLED = """
import sys
import numpy as np
import collectives

store, rank, transport, algorithm = sys.argv[1:]
with collectives.init(store, rank=int(rank), size=4, transport=transport) as comm:
    x = np.ones(4_000_000, np.float32)
    for i in range(1000):
        if comm.rank == 1 and i == 3:
            print("there", flush=True)
        try:
            comm.allreduce(x, out=x, algorithm=algorithm)
        except collectives.PeerLost as error:
            print(*error.ranks, flush=True)
            break
        x[:] = 1
"""


@pytest.mark.parametrize(
    ("transport", "algorithm"),
    [("shm", "two_shot"), ("shm", "ring"), ("tcp", "ring"), ("tcp", "recursive_doubling"), ("tcp", "tree")],
)
def test_a_rank_that_is_killed_on_the_way_is_named_by_all(transport: str, algorithm: str, tmp_path: Path) -> None:
    """Whether they wait for it, or for one that does and ends at once."""
    command = [python(), "-c", KILLED, (tmp_path / "store").as_uri()]
    started = [
        subprocess.Popen([*command, str(rank), transport, algorithm], stdout=subprocess.PIPE, text=True)
        for rank in range(4)
    ]
    killed = started[1]
    assert killed.stdout is not None and killed.stdout.readline() == "there\n"
    killed.send_signal(signal.SIGKILL)
    message = [process.communicate(timeout=60)[0] for process in started]
    assert message == ["1\n", "", "1\n", "1\n"]
    assert [process.returncode for process in started] == [0, -signal.SIGKILL, 0, 0]


@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
def test_a_rank_that_closes_is_lost_to_those_who_wait_for_it(transport: str) -> None:
    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            return
        with pytest.raises(collectives.PeerLost) as caught:
            comm.allreduce(ONES)
        assert 1 in caught.value.ranks or comm.rank == 2
        with pytest.raises(collectives.PeerLost) as again:
            comm.barrier()
        assert str(again.value) == str(caught.value)

    with nothing_left():
        found = outcomes(3, body, transport=transport)
    assert [o.error for o in found] == [None, None, None]
    assert max(o.seconds for o in found) < 20


@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
def test_a_late_rank_is_named_when_time_is_up(transport: str) -> None:
    over = threading.Event()

    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            assert over.wait(30)
            return
        with pytest.raises(collectives.OpTimeout, match="rank 1") as caught:
            comm.allreduce(ONES, timeout=0.2)
        over.set()
        assert caught.value.late == (1,)
        assert isinstance(caught.value, TimeoutError)

    ranks(2, body, transport=transport)


@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not connected"])
def test_a_call_that_ends_between_its_operations_ends_for_all(transport: str, connected: bool) -> None:
    """The operation that is under way waits for a rank that is late, longer than the rank that gives up.

    In a ring no rank has its result before the others take part, so what was sent before does not suffice.
    """
    given_up = threading.Event()

    def body(comm: Communicator) -> None:
        if connected:
            comm.barrier()
        if comm.rank == 1:
            work = comm.allreduce_async(ONES, algorithm="ring")
            comm._linked.group.abandon("OpTimeout", "the second of four slices was late")
            given_up.set()
            with pytest.raises(collectives.OpTimeout, match="second of four"):
                work.wait()
        assert given_up.wait(30)
        for _ in range(2):
            with pytest.raises(collectives.OpTimeout, match="second of four"):
                comm.allreduce(ONES, algorithm="ring")

    ranks(2, body, transport=transport)


@pytest.mark.parametrize("wire", [None, "bf16"])
@pytest.mark.parametrize("background", [False, True], ids=["blocking", "background"])
def test_a_list_that_is_interrupted_between_its_buckets_ends_for_all(
    wire: Literal["bf16"] | None, background: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 gets Ctrl-C before the third of four operations, which the other rank must not take for another call's."""
    packed, encoded = Step.pack, WiredCall.encoded
    turns = itertools.count()

    def interrupted() -> None:
        if threading.current_thread() is owner[1] and next(turns) == 2:
            raise KeyboardInterrupt

    def pack(step: Step) -> None:
        interrupted()
        packed(step)

    def encode(call: WiredCall, step: Any) -> Any:
        interrupted()
        return encoded(call, step)

    monkeypatch.setattr(Step, "pack", pack)
    monkeypatch.setattr(WiredCall, "encoded", encode)
    owner: dict[int, threading.Thread] = {}
    arrays = [np.ones(1 << 20, np.float32) for _ in range(8)]

    def body(comm: Communicator) -> None:
        owner[comm.rank] = threading.current_thread()
        comm.barrier()

        def call() -> None:
            if background:
                comm.allreduce_many_async(arrays, bucket_bytes=8 << 20, wire=wire).wait()
            else:
                comm.allreduce_many(arrays, bucket_bytes=8 << 20, wire=wire)

        if comm.rank == 1:
            with pytest.raises(KeyboardInterrupt):
                call()
            with pytest.raises(collectives.Aborted, match=r"ended on rank 1 after 2 of \d+ .* had begun"):
                comm.allreduce(ONES)
        else:
            with pytest.raises(collectives.PeerLost, match=r"ended on rank 1 after 2 of \d+ .* had begun"):
                call()

    ranks(2, body)
