"""A Redis server of its own for chaos runs, which may be stopped, killed, emptied and started again.

Invariant: the server listens on a loopback port, keeps nothing on disk, and is gone when the context ends.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from contextlib import closing, suppress
from types import TracebackType
from typing import Final

import redis

_START: Final = 20.0  # seconds that a server may take to start


def why_no_redis() -> str | None:
    """Return the reason why no Redis server can be started on this machine, as text, or None if one can."""
    if shutil.which("redis-server") is None:
        return "needs redis-server: apt-get install redis-server"
    return None


class Redis:
    """A Redis server for one test of the library under faults. Use it in a `with` statement."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> None:
        """Start the Redis server. If it was killed before, it is started on the same port.

        Raises: OSError if the server does not answer.
        """
        for _ in range(5):  # another program may take the port first
            if not self._port:
                with closing(socket.create_server(("127.0.0.1", 0))) as probe:
                    self._port = probe.getsockname()[1]
            options = ["--bind", "127.0.0.1", "--port", str(self._port), "--save", "", "--appendonly", "no"]
            self._process = subprocess.Popen(
                ["redis-server", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            end = time.monotonic() + _START
            while time.monotonic() < end and self._process.poll() is None:
                with suppress(redis.RedisError), self._client() as client:
                    client.ping()
                    return
                time.sleep(0.005)  # the server tells nobody when it is ready
            self.kill()
        raise OSError("redis-server does not start")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def flush(self) -> None:
        """Delete all keys from the Redis server, as an operator may do by mistake."""
        with self._client() as client:
            client.flushall()

    def keys(self) -> list[str]:
        """Return the keys that this library has in the Redis server, an empty list if the server does not run."""
        with suppress(redis.RedisError), self._client() as client:
            return [key.decode() for key in client.scan_iter("collectives:*", 1000)]
        return []

    clear = flush

    def _client(self) -> redis.Redis:
        return redis.Redis(host="127.0.0.1", port=self._port, socket_timeout=5.0)

    def __enter__(self) -> Redis:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
