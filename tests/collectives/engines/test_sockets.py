"""Links over several TCP sockets: who asks for them, what they carry, and what becomes of a peer that goes."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import collectives
from collectives.calibration.settle import first_within
from collectives.calibration.sockets import GAIN
from collectives.native import _engine
from collectives.schedule.table import MOST_SOCKETS, join, parse
from tests.collectives.groups import nothing_left, ranks

PART = 96 << 10  # bytes of a message that one of several sockets carries


def connections() -> int:
    """Sockets of this process that are connected over TCP."""
    mine = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread may close it meanwhile
            mine.add(os.readlink(f"/proc/self/fd/{fd}"))
    found = 0
    for name in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{name}") as lines:
            rows = [line.split() for line in lines][1:]
        found += sum(row[3] == "01" and f"socket:[{row[9]}]" in mine for row in rows)
    return found


def counted(comm: collectives.Communicator, links: int = 1) -> int:
    """Connections with data of so many links, once both ranks, which are threads here, have opened theirs."""
    comm.barrier()
    found = connections()
    comm.barrier()
    # Both ends are in this process. Each link has one for its farewell, and the two ranks have a control link.
    return found // 2 - links - 1 if found else 0


@pytest.mark.parametrize("sockets", [1, 2, 3, MOST_SOCKETS])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_results_are_right(size: int, sockets: int) -> None:
    counts = [0, 1, PART // 8, PART // 8 + 1, 3 * PART // 8, 1_000_003]

    def body(comm: collectives.Communicator) -> None:
        works = [comm.allreduce_async(np.full(n, float(comm.rank))) for n in counts]
        for n, work in zip(counts, works, strict=True):
            assert np.array_equal(work.result(), np.full(n, size * (size - 1) / 2))
        for name in ("ring", "one_shot", "two_shot", "circulant"):
            x = np.arange(300_001.0) + comm.rank
            expected = size * np.arange(300_001.0) + size * (size - 1) / 2
            assert np.array_equal(comm.allreduce(x, algorithm=name), expected)
        right, left = (comm.rank + 1) % size, (comm.rank - 1) % size
        for n in counts:
            got = np.empty(n)
            if comm.rank % 2:
                comm.recv(got, left)
                comm.send(np.full(n, float(comm.rank)), right)
            else:
                comm.send(np.full(n, float(comm.rank)), right)
                comm.recv(got, left)
            assert np.array_equal(got, np.full(n, float(left)))

    with nothing_left():
        ranks(size, body, transport="tcp", sockets=sockets)


def test_as_many_as_asked_for_and_in_what_is_made_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(comm: collectives.Communicator) -> tuple[int, int]:
        before = counted(comm)
        with comm.dup() as twin:
            return before, counted(twin, links=2)

    assert ranks(2, body, transport="tcp") == [(1, 2)] * 2
    assert ranks(2, body, transport="tcp", sockets=3) == [(3, 6)] * 2
    monkeypatch.setenv("COLLECTIVES_SOCKETS", "4")
    assert ranks(2, body, transport="tcp") == [(4, 8)] * 2
    assert ranks(2, body, transport="tcp", sockets=1) == [(1, 2)] * 2
    # Nothing else has sockets.
    assert ranks(2, body, transport="shm", sockets=3) == [(0, 0)] * 2


@pytest.mark.parametrize("reported", [1, 4])
def test_a_table_says_how_many_where_nobody_asks(reported: int) -> None:
    def body(comm: collectives.Communicator) -> tuple[int, str, str]:
        half = comm.split(0)
        assert half is not None
        with half:
            assert half._linked.sockets == comm._linked.sockets
        peers = next(line for line in comm.explain("allreduce", 8).splitlines() if "peers" in line)
        return counted(comm), peers.strip(), comm.name

    table = parse(f"sockets = {reported}\nallreduce any any any ring")
    each = f" ({reported} sockets each)" if reported > 1 else ""
    with nothing_left():
        assert (
            ranks(2, body, transport="tcp", table=table) == [(reported, f"peers       1 over tcp{each}", "default")] * 2
        )
    asked = ranks(2, body, transport="tcp", table=table, sockets=2)
    assert asked == [(2, "peers       1 over tcp (2 sockets each)", "default")] * 2
    assert ranks(2, lambda comm: comm._linked.sockets, transport="shm", table=table) == [1, 1]


def test_a_fact_about_sockets_is_checked_and_survives() -> None:
    table = parse("made = today\nsockets = 8\nallreduce any any any ring")
    assert table.sockets == 8
    joined = join([parse("barrier any any any dissemination"), table, parse("sockets = 2")])
    assert (joined.sockets, dict(joined.facts)) == (8, {"sockets": "8"})
    assert parse("").sockets is None
    for wrong in ("0", "17", "-1", "many", "2.0", "9" * 50):
        with pytest.raises(ValueError, match=r"mine, line 1: .* is no number of sockets, 1 to 16"):
            parse(f"sockets = {wrong}", "mine")


def test_a_fact_about_the_rendezvous_protocol_is_checked_and_survives() -> None:
    table = parse("rendezvous = 64K")
    assert table.rendezvous == 64 << 10 and parse("").rendezvous is None
    joined = join([parse("sockets = 2"), table, parse("sockets = 4\nrendezvous = 8192")])
    assert (joined.sockets, joined.rendezvous) == (2, 64 << 10)
    for wrong in ("0", "4095", "-1", "many", "1.5K"):
        with pytest.raises(ValueError, match=r"mine, line 1: "):
            parse(f"rendezvous = {wrong}", "mine")


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        (0, ValueError, "a link has 1 to 16 sockets, not 0"),
        (17, ValueError, "a link has 1 to 16 sockets, not 17"),
        ("4", TypeError, "sockets must be an int, not str"),
        (True, TypeError, "sockets must be an int, not bool"),
    ],
)
def test_what_is_no_number_of_them_is_refused(wrong: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        collectives.init(sockets=wrong)


def test_a_wrong_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTIVES_SOCKETS", "many")
    with pytest.raises(ValueError, match="COLLECTIVES_SOCKETS: "):
        collectives.init()
    for count, is_there in ((1, True), (MOST_SOCKETS, True), (0, False), (MOST_SOCKETS + 1, False)):
        if is_there:
            _engine.Group(0, 1, bytes(16), 0, b"", sockets=count).close()
        else:
            with pytest.raises(ValueError, match="no such number of sockets"):
                _engine.Group(0, 1, bytes(16), 0, b"", sockets=count)


def test_a_peer_that_leaves_is_lost_and_what_it_sent_before_is_not() -> None:
    def body(comm: collectives.Communicator) -> None:
        big = np.arange(2_000_000.0)
        if comm.rank == 1:
            work = comm.send_async(big, 0)
            work.wait()
            return
        got = np.empty_like(big)
        comm.recv(got, 1)
        assert np.array_equal(got, big)
        with pytest.raises(collectives.PeerLost, match="rank 1"):
            comm.recv(got, 1)

    with nothing_left():
        ranks(2, body, transport="tcp", sockets=4)


def test_the_fewest_that_all_but_reach_the_best() -> None:
    def best(*times: float) -> int:
        return first_within(np.array([times, times, times]), GAIN)

    assert best(1.0, 1.0, 1.0) == 0
    assert best(1.0, 0.95, 0.91) == 0
    assert best(1.0, 0.5, 0.47) == 1
    assert best(1.0, 0.95, 0.5) == 2
    assert best(1.0, 1.2, 1.1, 0.8) == 3
    assert first_within(np.array([[1.0, 0.1], [1.0, 1.0], [1.0, 1.1]]), GAIN) == 0  # one lucky round
