"""Plain sockets between the ranks, of one machine or several hosts, with as little overhead as possible in Python.

Invariant: one thread drives both directions and never waits for one while the other could move; connections come
from ranks of this communicator, which a random number proves.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from collectives import Communicator

_PATIENCE: Final = 10.0  # seconds without a byte
_TRIES: Final = 20  # in vain, before the kernel is asked to wait
_TOKEN: Final = 16
_UNDER_WAY: Final = 768 << 10  # bytes in a send buffer: as a link between processes of one machine has
_HERE: Final = "127.0.0.1"


class Ring:
    """A connection from each rank to the next; between two ranks one, for both directions.

    Made by all ranks together, of which there are at least two. Close it.
    """

    def __init__(self, comm: Communicator, addresses: Sequence[str] = ()) -> None:
        """Raises OSError, CollectiveError. `addresses`: of the ranks; over loopback, in one network namespace, if there
        are none.
        """
        size, rank = comm.size, comm.rank
        places = addresses or [_HERE] * size
        with socket.create_server((places[rank], 0), backlog=16) as listener, contextlib.ExitStack() as stack:
            token = np.frombuffer(os.urandom(_TOKEN), np.uint8).copy()
            tokens = comm.allgather(token)
            ports = comm.allgather(np.array(listener.getsockname()[1], np.int64)).tolist()
            ends = []
            if size > 2 or rank == 0:
                out = stack.enter_context(
                    socket.create_connection((places[(rank + 1) % size], ports[(rank + 1) % size]))
                )
                out.sendall(tokens[rank].tobytes())
                ends.append(out)
            if size > 2 or rank == 1:
                ends.append(stack.enter_context(_accept(listener, tokens[rank - 1].tobytes())))
            for end in ends:
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if addresses:
                    continue  # the kernel knows its network
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNDER_WAY)
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")  # does not pace
            self._out: Final = ends[0]
            self._in: Final = ends[-1]
            comm.barrier()
            self._kept: Final = stack.pop_all()

    def exchange(self, data: bytes | bytearray, into: bytes | bytearray, piece: int) -> None:
        """Send `data` to the next rank, in writes of at most `piece` bytes, and fill `into` from the previous one.

        Raises OSError; ConnectionError if the other side is gone, TimeoutError where nothing moves any more.
        """
        out, inp = self._out, self._in
        source, target = memoryview(data), memoryview(into)
        sent, got, whole, wanted = 0, 0, len(source), len(target)
        idle = 0
        while sent < whole or got < wanted:
            before = sent + got
            if sent < whole:
                with contextlib.suppress(BlockingIOError):
                    sent += out.send(source[sent : sent + piece])
            if got < wanted:
                with contextlib.suppress(BlockingIOError):
                    read = inp.recv_into(target[got:])
                    if not read:
                        raise ConnectionError("the other side of a socket has ended")
                    got += read
            idle = idle + 1 if sent + got == before else 0
            if idle > _TRIES:
                _wait(out if sent < whole else None, inp if got < wanted else None)
                idle = 0

    def close(self) -> None:
        self._kept.close()


def _accept(listener: socket.socket, token: bytes) -> socket.socket:
    end = time.monotonic() + _PATIENCE
    while True:
        listener.settimeout(max(end - time.monotonic(), 1e-3))
        connection, _ = listener.accept()
        connection.settimeout(max(end - time.monotonic(), 1e-3))
        with contextlib.suppress(OSError):
            if connection.recv(_TOKEN, socket.MSG_WAITALL) == token:
                return connection
        connection.close()


def _wait(out: socket.socket | None, inp: socket.socket | None) -> None:
    """Until one of them can move."""
    poll = select.poll()
    events: dict[int, int] = {}
    for end, event in ((out, select.POLLOUT), (inp, select.POLLIN)):
        if end is not None:
            events[end.fileno()] = events.get(end.fileno(), 0) | event
    for descriptor, wanted in events.items():
        poll.register(descriptor, wanted)
    if not poll.poll(_PATIENCE * 1000):
        raise TimeoutError(f"nothing has moved on a socket for {_PATIENCE:g} s")
