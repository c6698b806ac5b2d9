"""Messages between the benchmark's processes on this machine, which sleep while they wait for a message.

Invariant: a process that waits for a message is blocked in the kernel and uses no processor time, unlike a rank that
waits in a collective. Connections from processes of other users are closed. This module imports nothing but the
standard library, because the workers of other systems import it in another Python.

One process opens a `Listener` and passes the listener's name to the other processes, which call `connect`. A message is
a line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Collection
from types import TracebackType
from typing import Any, Final

LONGEST: Final = 1 << 26  # bytes of one message
_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group


class Channel:
    """A connection to another process of the benchmark on this machine, over which both send JSON values.

    The object owns the socket. Timeouts are in seconds. The methods raise TimeoutError, and ConnectionError if the
    other process has ended.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket: Final = connection
        self._read = bytearray()

    def send(self, message: Any, timeout: float) -> None:
        self._socket.settimeout(timeout)
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout: float) -> Any:
        end = time.monotonic() + timeout
        while (line := self._read.find(b"\n")) < 0:
            if len(self._read) > LONGEST:
                raise ConnectionError(f"a message of more than {LONGEST} bytes")
            self._socket.settimeout(max(end - time.monotonic(), 1e-3))
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the other side has ended")
            self._read += data
        text = bytes(self._read[:line])
        del self._read[: line + 1]
        return json.loads(text)

    def close(self) -> None:
        self._socket.close()


class Listener:
    """A Unix socket that accepts connections from the other processes of the benchmark on this machine.

    Each process is identified by a number. Close the object, or use it in a `with` statement.
    """

    def __init__(self) -> None:
        self.name: Final = f"pycollectives-bench-{secrets.token_hex(16)}"
        self._socket: Final = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind("\0" + self.name)  # an abstract name: nothing to remove afterwards
        self._socket.listen(256)

    def accept(self, missing: Collection[int], timeout: float) -> tuple[int, Channel]:
        """Accept one connection; return the number of the process that has connected, and the connection.

        The caller has to close the connection. `missing` has the numbers of the processes that have not connected yet.
        `timeout` is in seconds. Raises: TimeoutError; ConnectionError if the number is not in `missing` or the process
        has ended.
        """
        end = time.monotonic() + timeout
        while True:
            self._socket.settimeout(max(end - time.monotonic(), 1e-3))
            connection, _ = self._socket.accept()
            channel = Channel(connection)
            try:
                if _user(connection) == os.geteuid():
                    number = channel.receive(max(end - time.monotonic(), 1e-3))
                    if number in missing:
                        return int(number), channel
                    raise ConnectionError(f"{str(number)[:80]} came, but {sorted(missing)} are missing")
            except BaseException:
                channel.close()
                raise
            channel.close()

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(name: str, number: int, timeout: float) -> Channel:
    """Connect to the `Listener` with the socket name `name`, and return the connection.

    `number` tells the listener which process this is. `timeout` is in seconds. Raises: OSError.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect("\0" + name)
        channel = Channel(connection)
        channel.send(number, timeout)
    except BaseException:
        with contextlib.suppress(OSError):
            connection.close()
        raise
    return channel


def _user(connection: socket.socket) -> int:
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(data)[1])
