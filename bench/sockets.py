"""Plain sockets between ranks, on one host or several, with as little overhead as possible in Python.

Invariant: one thread sends and receives, and never waits to send while it could receive, or the reverse. A connection
is accepted only if the peer first sends a random number that only ranks of this communicator know.
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

_PATIENCE: Final = 10.0  # seconds without a byte, after which an error is raised
_TRIES: Final = 20  # attempts that move no byte, before the thread sleeps in poll()
_TOKEN: Final = 16
_UNDER_WAY: Final = 768 << 10  # bytes of a send buffer, as in the library's links between processes of one machine
_HERE: Final = "127.0.0.1"


class Ring:
    """TCP connections from each rank to the next, in a ring. Two ranks have a single connection.

    All ranks of the communicator, at least two, must create the object together. Each rank must close it.
    """

    def __init__(self, comm: Communicator, addresses: Sequence[str] = ()) -> None:
        """Connect to the neighbours in the ring. `addresses`: the address of each rank; if empty, all use 127.0.0.1.

        Raises OSError, CollectiveError.
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
                    continue  # the kernel's defaults suit a network
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNDER_WAY)
                with contextlib.suppress(OSError):
                    end.setsockopt(
                        socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno"
                    )  # unlike others, sends without pauses
            self._out: Final = ends[0]
            self._in: Final = ends[-1]
            comm.barrier()
            self._kept: Final = stack.pop_all()

    def exchange(self, data: bytes | bytearray, into: bytes | bytearray, piece: int) -> None:
        """Send `data` to the next rank, and receive `len(into)` bytes from the previous rank into `into`.

        Each write has at most `piece` bytes. Raises: ConnectionError if a peer has closed its connection; TimeoutError
        if no byte moves for ten seconds.
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
    """Wait until bytes can move on one of the sockets."""
    poll = select.poll()
    events: dict[int, int] = {}
    for end, event in ((out, select.POLLOUT), (inp, select.POLLIN)):
        if end is not None:
            events[end.fileno()] = events.get(end.fileno(), 0) | event
    for descriptor, wanted in events.items():
        poll.register(descriptor, wanted)
    if not poll.poll(_PATIENCE * 1000):
        raise TimeoutError(f"nothing has moved on a socket for {_PATIENCE:g} s")
