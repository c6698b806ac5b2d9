"""Messages between processes that sleep meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from collectives.bench.channel import Channel, Listener, connect


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    with Listener() as listener:
        near = connect(listener.name, 3, 5.0)
        number, far = listener.accept({2, 3}, 5.0)
    assert number == 3
    yield near, far
    near.close()
    far.close()


def test_messages_arrive_in_order_and_whole(pair: tuple[Channel, Channel]) -> None:
    near, far = pair
    big = {"samples": [0.1 * i for i in range(100_000)], "text": "a\nb"}

    def send() -> None:
        for message in (1, big, None):
            near.send(message, 10.0)

    sender = threading.Thread(target=send)
    sender.start()
    assert [far.receive(10.0) for _ in range(3)] == [1, big, None]
    sender.join()


def test_waiting_has_an_end(pair: tuple[Channel, Channel]) -> None:
    with pytest.raises(TimeoutError):
        pair[0].receive(0.01)


def test_the_other_side_ends(pair: tuple[Channel, Channel]) -> None:
    pair[1].close()
    with pytest.raises(ConnectionError, match="has ended"):
        pair[0].receive(5.0)


def test_nobody_comes() -> None:
    with Listener() as listener, pytest.raises(TimeoutError):
        listener.accept({0}, 0.01)


def test_a_number_that_is_not_expected() -> None:
    with Listener() as listener:
        stray = connect(listener.name, 7, 5.0)
        with pytest.raises(ConnectionError, match=r"7 came, but \[0, 1\] are missing"):
            listener.accept({0, 1}, 5.0)
        stray.close()


def test_there_is_no_such_desk() -> None:
    with pytest.raises(OSError):
        connect("pycollectives-bench-nobody", 0, 1.0)
