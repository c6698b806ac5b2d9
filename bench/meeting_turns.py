"""What the ranks of one process do in a turn of `bench meeting`: meet through a store, or make a communicator.

Invariant: a turn's clock runs from the start of the first rank of the process to the end of its last. What a rank opens
stays open until all ranks of the group have ended the turn.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

import collectives
from collectives.bench.hosts import own_memory
from collectives.bench.rank_threads import RankThreads
from collectives.core.links import Endpoints, Policy
from collectives.native.errors import CollectiveError
from collectives.rendezvous import Membership, Store, form, open_store, release
from collectives.rendezvous.store import DEFAULT_TIMEOUT
from collectives.rendezvous.tcp import TcpStore
from collectives.transports.transport import Scope

NAME: Final = "meeting"


@dataclass(frozen=True, slots=True)
class Job:
    """How the ranks of one turn find each other: the store's URL, their number, their secret and their run id."""

    url: str
    size: int
    secret: bytes
    run: str
    timeout: float


@dataclass(frozen=True, slots=True)
class Span:
    """A turn of the ranks of one process.

    `start` and `end` are in seconds of a clock that all processes of this machine share. `memory` is how many bytes
    resident memory grew for all these ranks together. `requests` has the number of requests to the store of each rank,
    and `received` the number of bytes of all values that the rank has read.
    """

    start: float
    end: float
    memory: int = 0
    requests: tuple[int, ...] = ()
    received: tuple[int, ...] = ()


class Counted:
    """A store that counts the requests to another store, and the bytes of the values that it returns."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.requests = 0
        self.received = 0

    def __repr__(self) -> str:
        return repr(self._store)

    def _note(self, *values: bytes | None) -> None:
        self.requests += 1
        self.received += sum(len(value) for value in values if value is not None)

    def set(self, key: str, value: bytes, timeout: float = DEFAULT_TIMEOUT) -> None:
        self._note()
        self._store.set(key, value, timeout)

    def get(self, key: str, timeout: float = DEFAULT_TIMEOUT) -> bytes | None:
        value = self._store.get(key, timeout)
        self._note(value)
        return value

    def wait(self, keys: Sequence[str], timeout: float = DEFAULT_TIMEOUT) -> list[bytes]:
        try:
            values = self._store.wait(keys, timeout)
        except BaseException:
            self._note()
            raise
        self._note(*values)
        return values

    def add(self, key: str, amount: int, timeout: float = DEFAULT_TIMEOUT) -> int:
        self._note()
        return self._store.add(key, amount, timeout)

    def compare_set(
        self, key: str, expected: bytes | None, value: bytes | None, timeout: float = DEFAULT_TIMEOUT
    ) -> bytes | None:
        found = self._store.compare_set(key, expected, value, timeout)
        self._note(None if found == value else found)
        return found

    def delete(self, keys: Sequence[str], timeout: float = DEFAULT_TIMEOUT) -> int:
        self._note()
        return self._store.delete(keys, timeout)

    def close(self) -> None:
        self._store.close()


@dataclass(slots=True)
class _Met:
    """What ranks that have met leave open."""

    stores: list[tuple[int, Counted]] = field(default_factory=list)
    members: list[tuple[Counted, Membership]] = field(default_factory=list)

    def close(self, servers: bool) -> None:
        if not servers:
            for store, membership in self.members[:1]:
                if membership.rank == 0:
                    release(store, membership)
        for rank, store in self.stores:
            if (rank == 0) == servers:
                store.close()


def warm(threads: RankThreads, first: int) -> tuple[None, _Met]:
    """Meet alone, so that the first turn that is measured loads no code."""
    secret = secrets.token_bytes(32)
    with contextlib.closing(TcpStore.serve("127.0.0.1", 0, secret=secret)) as store:
        form(store, rank=0, size=1, name=NAME, record=_template(), fingerprint="bench", secret=secret, settle=0.0)
    own = f"memory://{secrets.token_hex(16)}"  # whatever the environment says
    collectives.init(own, rank=0, size=1, name=NAME, secret=secret, calibrate="off").close()
    return None, _Met()


def meet(threads: RankThreads, first: int, job: Job) -> tuple[Span, _Met]:
    """The ranks find each other through the store: each gets a roster of its own and checks its HMAC.

    The records are as long as those of `collectives.init`: each rank publishes a host and addresses as of this process,
    with names and ports of its own.
    """
    template = _template()
    left = _Met()

    def one(rank: int) -> tuple[float, float, Counted]:
        rank += first
        start = time.perf_counter()
        record = _record(template, rank)
        store = Counted(open_store(job.url, timeout=job.timeout, host=rank == 0, secret=job.secret))
        left.stores.append((rank, store))
        membership = form(
            store,
            rank=rank,
            size=job.size,
            name=NAME,
            record=record,
            fingerprint="bench",
            run_id=job.run,
            secret=job.secret,
            timeout=job.timeout,
        )
        end = time.perf_counter()
        left.members.append((store, membership))
        if membership.records[rank] != record:
            raise CollectiveError(f"rank {rank} has another record in the roster")
        return start, end, store

    before = _memory()
    try:
        found, _ = threads.run(one)
    except BaseException:
        left.close(servers=False)
        left.close(servers=True)
        raise
    memory = _memory() - before
    left.members.sort(key=lambda one: one[1].rank)
    counts = tuple(s.requests for _, _, s in found), tuple(s.received for _, _, s in found)
    return Span(min(s for s, _, _ in found), max(e for _, e, _ in found), memory, *counts), left


@functools.cache
def _template() -> dict[str, Any]:
    """The record with which a rank of this process would publish its host and addresses."""
    endpoints = Endpoints(Policy("auto", Scope(True), bytes(32)))
    try:
        return endpoints.member.to_json()
    finally:
        endpoints.close()


def _record(template: dict[str, Any], rank: int) -> dict[str, Any]:
    record = copy.deepcopy(template)
    record["host"]["proof"] = f"pycollectives-{secrets.token_hex(16)}"
    addresses = record["addresses"]
    addresses["inproc"] = [secrets.token_hex(16)]
    if "shm" in addresses:
        addresses["shm"] = [f"pycollectives-{secrets.token_hex(16)}"]
    addresses["tcp"] = [f"{text.split()[0]} {1024 + rank}" for text in addresses.get("tcp", ())]
    return record


def _memory() -> int:
    gc.collect()
    return own_memory("RssAnon") + own_memory("RssShmem")


@dataclass(slots=True)
class _Made:
    """The communicators of the ranks of one process."""

    made: list[collectives.Communicator] = field(default_factory=list)

    def close(self, servers: bool) -> None:
        for comm in self.made:
            if (comm.rank == 0) == servers:
                comm.close()


def init(threads: RankThreads, first: int, job: Job) -> tuple[Span, _Made]:
    """All ranks call `collectives.init`."""
    left = _Made()

    def one(rank: int) -> tuple[float, float]:
        start = time.perf_counter()
        comm = collectives.init(
            job.url,
            rank=first + rank,
            size=job.size,
            name=NAME,
            timeout=job.timeout,
            join_timeout=job.timeout,
            secret=job.secret,
            calibrate="off",
        )
        end = time.perf_counter()
        left.made.append(comm)
        return start, end

    before = _memory()
    with _variable("COLLECTIVES_RUN_ID", job.run):
        try:
            found, _ = threads.run(one)
        except BaseException:
            left.close(servers=False)
            left.close(servers=True)
            raise
    return Span(min(s for s, _ in found), max(e for _, e in found), _memory() - before), left


@dataclass(slots=True)
class _Torch:
    """The process group of torch.distributed and its store."""

    store: Any

    def close(self, servers: bool) -> None:
        if not servers:
            import torch.distributed as dist

            dist.destroy_process_group()
        else:
            self.store = None


def torch_gloo(threads: RankThreads, first: int, job: Job) -> tuple[Span, _Torch]:
    """All ranks, each a process, connect to torch's TCPStore and make a process group of Gloo."""
    if threads.ranks != 1:
        raise CollectiveError("a process has one process group of torch, so each rank has to be a process")
    import torch.distributed as dist

    where = urlsplit(job.url)
    patience = timedelta(seconds=job.timeout)
    start = time.perf_counter()
    with _variable("GLOO_SOCKET_IFNAME", "lo"):
        store = dist.TCPStore(str(where.hostname), where.port or 0, job.size, first == 0, patience)
        dist.init_process_group("gloo", store=store, rank=first, world_size=job.size, timeout=patience)
    return Span(start, time.perf_counter()), _Torch(store)


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
