"""Ranks that are threads of this process, and stores for them, to measure how groups form (not how data moves).

Invariant: all tasks run on the same threads, so these threads do not count as resources that a task leaves behind. A
store that `place` makes is removed when its `with` statement ends.
"""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar
from urllib.parse import urlsplit

import redis

from collectives.rendezvous import memory

T = TypeVar("T")

OWN: Final = ("memory", "file", "tcp")  # stores that can be made here
LIMIT: Final = 120.0  # seconds that a thread waits for the others to begin a task
_KEYS: Final = "collectives:*"  # what the library keeps in a Redis server


class Crowd:
    """A pool of `ranks` threads that all run the same task at the same time. Use it in a `with` statement."""

    def __init__(self, ranks: int) -> None:
        self.ranks: Final = ranks
        self._pool: Final = ThreadPoolExecutor(ranks, "rank")
        self._gate: Final = threading.Barrier(ranks)

    def run(self, task: Callable[[int], T]) -> tuple[list[T], float]:
        """Run `task(rank)` on all threads at once.

        Returns the results, and the seconds from the start of the first task to the end of the last. Raises the first
        error, once all tasks have ended.
        """

        errors: list[BaseException] = []

        def one(rank: int) -> tuple[T, float, float]:
            self._gate.wait(LIMIT)
            start = time.perf_counter()
            try:
                found = task(rank)
            except BaseException as error:
                errors.append(error)
                raise
            return found, start, time.perf_counter()

        running = [self._pool.submit(one, rank) for rank in range(self.ranks)]
        wait(running)
        if errors:
            raise errors[0]
        done = [future.result() for future in running]
        return [found for found, _, _ in done], max(end for _, _, end in done) - min(start for _, start, _ in done)

    def __enter__(self) -> Crowd:
        self.run(lambda _rank: None)  # starts all threads
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()


@dataclass(frozen=True, slots=True)
class Place:
    """A rendezvous store. The output names the store by `kind`, because `url` may contain a password."""

    kind: str
    url: str
    keys: Callable[[], int]  # the number of keys that are in the store now
    files: Callable[[], int]


@contextmanager
def place(name: str) -> Iterator[Place]:
    """A context manager that makes the rendezvous store `name`: "memory", "file", "tcp", or the URL of a Redis server.

    Raises ValueError, RedisError.
    """
    match urlsplit(name).scheme or name:
        case "memory":
            yield Place("memory", f"memory://{secrets.token_hex(8)}", _kept_in_memory, _nothing)
        case "file":
            with tempfile.TemporaryDirectory(prefix="collectives-bench-") as folder:
                inside = Path(folder)
                yield Place("file", inside.as_uri(), _nothing, lambda: sum(1 for _ in inside.rglob("*")))
        case "tcp":
            with closing(socket.create_server(("127.0.0.1", 0))) as probe:
                port = probe.getsockname()[1]
            yield Place("tcp", f"tcp://127.0.0.1:{port}", _nothing, _nothing)  # keys end with rank 0's store
        case "redis" if name != "redis":
            with closing(redis.Redis.from_url(name, socket_timeout=5.0)) as client:
                client.ping()
                yield Place("redis", name, lambda: sum(1 for _ in client.scan_iter(_KEYS, 1000)), _nothing)
        case _:
            raise ValueError(f"{name.partition('@')[2] or name!r}: write {', '.join(OWN)} or redis://host")


def usual() -> tuple[str, ...]:
    """The rendezvous stores to measure by default: "memory", "file", "tcp", and $COLLECTIVES_STORE if it is Redis."""
    url = os.environ.get("COLLECTIVES_STORE", "")
    return (*OWN, url) if url.startswith("redis://") else OWN


@contextmanager
def job() -> Iterator[bytes]:
    """A context manager that sets a run id in the environment and yields a secret, as a launcher makes for each job."""
    before = os.environ.get("COLLECTIVES_RUN_ID")
    os.environ["COLLECTIVES_RUN_ID"] = secrets.token_hex(16)
    try:
        yield secrets.token_bytes(32)
    finally:
        if before is None:
            del os.environ["COLLECTIVES_RUN_ID"]
        else:
            os.environ["COLLECTIVES_RUN_ID"] = before


def _kept_in_memory() -> int:
    return sum(len(space.table) for space in memory._spaces.values())


def _nothing() -> int:
    return 0
