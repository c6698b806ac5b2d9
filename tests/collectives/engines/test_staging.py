"""Messages that pass through staging memory, many of which wait there at once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest

from collectives import Communicator
from tests.collectives.groups import ranks

MESSAGES = 300
AT_ONCE = 15  # of each kind; what is in progress at the same time is limited


@pytest.fixture(autouse=True)
def nothing_is_read_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTIVES_PULL", "0")


def messages(sender: int) -> Iterator[np.ndarray]:
    """Of all sizes: in a line, in less than a page, in one piece, in several, in all there is and more."""
    rng = np.random.default_rng(sender)
    for number in range(MESSAGES):
        nbytes = int(2 ** rng.uniform(0, 22 if number % 10 == 0 else 17))
        yield rng.integers(0, 256, nbytes, dtype=np.uint8)


@pytest.mark.parametrize("segment", [None, 64, 1000, 65536])
def test_messages_of_all_sizes_arrive_as_they_were_sent(segment: int | None) -> None:
    """Both send ahead of what the other takes, so that staging memory is full most of the time."""

    def body(comm: Communicator) -> None:
        peer = 1 - comm.rank
        number = 0
        mine, theirs = messages(comm.rank), messages(peer)
        while sent := [comm.send_async(x, peer) for x in islice(mine, AT_ONCE)]:
            expected = list(islice(theirs, AT_ONCE))
            received = [np.zeros_like(x) for x in expected]
            for handle in [comm.recv_async(x, peer) for x in received]:
                handle.wait()
            for x, wanted in zip(received, expected, strict=True):
                np.testing.assert_array_equal(x, wanted, err_msg=f"message {number}")
                number += 1
            for handle in sent:
                handle.wait()
        assert number == MESSAGES

    options = {} if segment is None else {"segment": segment}
    ranks(2, body, transport="shm", **options)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_results_do_not_depend_on_what_lay_there_before(size: int) -> None:
    """Collectives of changing sizes, each of which writes over places that others have read."""
    names = ["ring", "two_shot", "one_shot"]

    def body(comm: Communicator) -> None:
        rng = np.random.default_rng(7)  # the same sizes on every rank
        for number in range(120):
            n = int(2 ** rng.uniform(0, 16 if number % 8 else 19))
            x = np.full(n, comm.rank + number, dtype=np.float32)
            total = comm.allreduce(x, algorithm=names[number % len(names)])
            np.testing.assert_array_equal(total, np.full(n, sum(range(size)) + size * number, dtype=np.float32))
            shared = comm.empty(n)
            shared[:] = x
            comm.allreduce(shared, out=shared, algorithm=names[number % len(names)])
            np.testing.assert_array_equal(shared, total)
            rows = np.repeat(np.arange(size, dtype=np.int64) * 1000 + comm.rank + number, n).reshape(size, n)
            swapped = comm.alltoall(rows)
            np.testing.assert_array_equal(swapped[:, 0], comm.rank * 1000 + np.arange(size) + number)
            np.testing.assert_array_equal(swapped[:, -1], swapped[:, 0])
            everything = np.arange(size, dtype=np.float32)[:, None] + np.full(n, number, dtype=np.float32)
            np.testing.assert_array_equal(comm.allgather(x), everything)
            root = number % size
            np.testing.assert_array_equal(comm.broadcast(x.copy(), root), np.full(n, root + number, dtype=np.float32))

    ranks(size, body, transport="shm")
