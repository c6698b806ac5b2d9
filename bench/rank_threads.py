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


class RankThreads:
    """A pool of `ranks` threads that all run the same task at the same time. Use it in a `with` statement.

    Each thread stands for a rank of a job, to measure how ranks find each other.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks: Final = ranks
        self._pool: Final = ThreadPoolExecutor(ranks, "rank")
        self._gate: Final = threading.Barrier(ranks)

    def run(self, task: Callable[[int], T]) -> tuple[list[T], float]:
        """Run `task(rank)` on all threads at once. Return a list of the results, by rank, and a time in seconds.

        The time runs from the start of the first task to the end of the last. If tasks fail, the first error is raised
        after all tasks have ended.
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

    def __enter__(self) -> RankThreads:
        self.run(lambda _rank: None)  # starts all threads
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()


@dataclass(frozen=True, slots=True)
class Place:
    """A rendezvous store: the key-value store through which ranks find each other.

    `kind` is its name in the output, because `url` may contain a password. `keys()` and `files()` return how many keys
    and files there are in the store.
    """

    kind: str
    url: str
    keys: Callable[[], int]  # the number of keys that are in the store now
    files: Callable[[], int]


@contextmanager
def place(name: str) -> Iterator[Place]:
    """A context manager that creates the rendezvous store `name`: "memory", "file" or "tcp".

    `name` may also be the URL of a Redis server. Raises: ValueError for an unknown name; RedisError.
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
    """Return the names of the rendezvous stores to measure by default: "memory", "file" and "tcp".

    If COLLECTIVES_STORE is the URL of a Redis server, this URL is the fourth name.
    """
    url = os.environ.get("COLLECTIVES_STORE", "")
    return (*OWN, url) if url.startswith("redis://") else OWN


@contextmanager
def job() -> Iterator[bytes]:
    """A context manager that prepares a job as a launcher does: it sets a run id and yields a secret.

    The run id is in the environment variable COLLECTIVES_RUN_ID. Run id and secret are new for each job.
    """
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
