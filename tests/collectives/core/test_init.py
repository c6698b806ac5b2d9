"""How ranks get a communicator, every way in which that can fail, and that nothing is left behind then."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collectives
from collectives.core import init as init_module
from collectives.core.init import _fingerprint as fingerprint
from collectives.core.init import heartbeats_asked
from collectives.core.links import Policy, link
from collectives.native._engine import HEARTBEATS
from collectives.rendezvous import secret as secrets
from collectives.rendezvous._checks import Unreachable
from collectives.rendezvous.memory import MemoryStore
from collectives.rendezvous.prefix import PrefixStore
from collectives.rendezvous.store import Store, open_store
from collectives.transports.transport import Scope
from tests.collectives.groups import nothing_left
from tests.redis_server import RedisServer
from tests.rendezvous.groups import Arrivals
from tests.rendezvous.threads import Outcome, together

ROOT = Path(__file__).resolve().parents[3]
VARIABLES = [name for name in os.environ if name.startswith(("COLLECTIVES_", "SLURM_", "OMPI_", "PMI_"))]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLLECTIVES_CALIBRATE", "off")


def start(size: int, change: Callable[[int], dict[str, Any]] | None = None, **common: Any) -> list[Outcome[float]]:
    """Ranks as threads; `change` gives what differs from rank to rank. Each runs one allreduce."""

    def rank(number: int) -> float:
        settings = {"rank": number, "size": size, "join_timeout": 20.0, **common, **(change(number) if change else {})}
        with collectives.init(settings.pop("store"), **settings) as comm:
            return float(comm.allreduce(np.array(1.0)))

    return together([lambda number=number: rank(number) for number in range(size)])  # type: ignore[misc]


def errors(found: list[Outcome[float]]) -> list[str]:
    return [type(o.error).__name__ for o in found]


_names = itertools.count()


@pytest.fixture
def memory() -> Iterator[str]:
    """A store of threads; in the end it must be empty."""
    name = f"init-{next(_names)}"
    keeper = MemoryStore(name)
    yield f"memory://{name}"
    assert len(keeper._space.table) == 0
    keeper.close()


def test_a_group_of_one_needs_nothing() -> None:
    with nothing_left():
        with collectives.init() as comm:
            assert (comm.rank, comm.size, comm.local_rank, comm.local_size) == (0, 1, 0, 1)
            assert comm.allreduce(np.arange(3)).tolist() == [0, 1, 2]
        del comm


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"store": "pigeon://coop"}, ValueError, "unknown store 'pigeon://coop'.*file://.*redis://"),
        ({"store": "file:///tmp", "rank": 2, "size": 2}, ValueError, "rank must be 0 to 1"),
        ({"store": "file:///tmp", "rank": -1, "size": 2}, ValueError, "rank must be 0 to 1"),
        ({"store": "file:///tmp", "rank": True, "size": 2}, TypeError, "rank must be an int, not bool"),
        ({"store": "file:///tmp", "rank": 0, "size": 0}, ValueError, "size must be"),
        ({"store": "file:///tmp", "rank": 0}, ValueError, "no size"),
        ({"rank": 0, "size": 2}, ValueError, "does not know where to meet"),
        ({"store": 7, "rank": 0, "size": 2}, TypeError, "a store is a URL"),
        ({"transport": "pigeon"}, ValueError, "unknown transport 'pigeon'; there are auto, inproc, shm, tcp, verbs"),
        ({"transport": 3}, TypeError, "transport must be a str"),
        ({"name": 3}, TypeError, "name must be a str"),
        ({"timeout": math.nan}, ValueError, "timeout is nan"),
        ({"timeout": -1}, ValueError, "timeout is -1"),
        ({"join_timeout": math.nan}, ValueError, "join_timeout is nan"),
        ({"join_timeout": "60"}, TypeError, "join_timeout must be a number"),
        ({"segment": 0}, ValueError, "a segment is 1 byte to 64M, not 0"),
        ({"segment": (64 << 20) + 1}, ValueError, "a segment is 1 byte to 64M, not 67108865"),
        ({"segment": "64K"}, TypeError, "segment must be an int, not str"),
        ({"segment": True}, TypeError, "segment must be an int, not bool"),
        ({"secret": b"short"}, ValueError, "16 to 4096 bytes"),
        ({"secret": "text"}, TypeError, "a secret is bytes"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with nothing_left(), pytest.raises(error, match=words):
        collectives.init(arguments.pop("store", None), **arguments)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("many", "COLLECTIVES_SEGMENT: 'many' is not a size"),
        ("-1", "COLLECTIVES_SEGMENT: '-1' is not a size"),
        ("0", "COLLECTIVES_SEGMENT: a segment is 1 byte to 64M, not 0"),
        ("1G", "COLLECTIVES_SEGMENT: a segment is 1 byte to 64M, not 1073741824"),
    ],
)
def test_a_wrong_segment_in_the_environment(text: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTIVES_SEGMENT", text)
    with nothing_left(), pytest.raises(ValueError, match=words):
        collectives.init()


@pytest.mark.parametrize(
    ("interval", "limit", "words"),
    [
        ("often", "", "COLLECTIVES_HEARTBEAT_INTERVAL='often' is not a finite number of seconds, zero or more"),
        ("", "-1", "COLLECTIVES_HEARTBEAT_LIMIT='-1' is not a finite number of seconds, zero or more"),
        ("", "nan", "COLLECTIVES_HEARTBEAT_LIMIT='nan'"),
        ("0", "", "COLLECTIVES_HEARTBEAT_INTERVAL is 0"),
        ("1", "1.5", "COLLECTIVES_HEARTBEAT_LIMIT is 1.5 s: it must be at least twice the interval, 1 s, or 0"),
    ],
)
def test_wrong_heartbeats(interval: str, limit: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTIVES_HEARTBEAT_INTERVAL", interval)
    monkeypatch.setenv("COLLECTIVES_HEARTBEAT_LIMIT", limit)
    with nothing_left(), pytest.raises(ValueError, match=words):
        collectives.init()


def test_heartbeats_are_settings_on_which_ranks_agree() -> None:
    assert heartbeats_asked({}) == HEARTBEATS == (1.0, 10.0)
    asked = heartbeats_asked({"COLLECTIVES_HEARTBEAT_INTERVAL": "0.5", "COLLECTIVES_HEARTBEAT_LIMIT": "0"})
    assert asked == (0.5, 0.0)
    usual = Policy("auto", Scope(False), b"")
    assert "heartbeats" not in fingerprint(usual, False)
    assert "heartbeats 0.5 s, limit 0 s" in fingerprint(replace(usual, heartbeats=asked), False)


def test_settings_of_callers_are_compared() -> None:
    usual = fingerprint(Policy("auto", Scope(False), b""), True)
    assert fingerprint(Policy("auto", Scope(False), b""), True, "colour red") == f"{usual}, colour red"


def test_an_unreachable_redis_is_named_in_time() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, but nobody listens
        port = nobody.getsockname()[1]
        began = time.monotonic()
        with nothing_left(), pytest.raises(collectives.StoreError, match=f"127.0.0.1:{port}.*refused"):
            collectives.init(f"redis://127.0.0.1:{port}", rank=0, size=2, join_timeout=1.0)
        assert time.monotonic() - began < 30  # the client may be imported here for the first time


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    with nothing_left(), pytest.raises(collectives.StoreError, match=str(file)):
        collectives.init((file / "store").as_uri(), rank=0, size=2, join_timeout=1.0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_directory_without_permission_is_named(tmp_path: Path) -> None:
    """In a child that is not root, whom nothing stops."""
    tmp_path.chmod(0o500)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setresuid(65534, 65534, 65534)
            collectives.init((tmp_path / "store").as_uri(), rank=0, size=2, join_timeout=1.0)
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        message = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert message.startswith("StoreError: ")
    assert "Permission denied" in message
    assert str(tmp_path / "store") in message


def test_missing_ranks_are_listed(memory: str) -> None:
    arrivals = Arrivals(2)

    def change(rank: int) -> dict[str, Any]:
        return {"size": 5, "store": arrivals.of(open_store(memory))}

    with nothing_left():
        found = start(2, change, join_timeout=0.5)
    assert errors(found) == ["OpTimeout", "OpTimeout"]
    assert isinstance(found[0].error, collectives.OpTimeout)
    assert found[0].error.late == (2, 3, 4)
    assert "2-4" in str(found[0].error)


def test_sizes_that_differ_are_told_to_all(memory: str) -> None:
    with nothing_left():
        found = start(3, lambda rank: {"size": 4 if rank == 2 else 3}, store=memory)
    assert errors(found) == ["ConfigMismatch"] * 3


def test_a_rank_that_comes_twice_is_told_to_all(memory: str) -> None:
    with nothing_left():
        found = start(3, lambda rank: {"rank": rank % 2, "size": 3}, store=memory)
    assert "ConfigMismatch" in errors(found)
    assert "started twice" in str(next(o.error for o in found if isinstance(o.error, collectives.ConfigMismatch)))


def test_transports_that_differ_are_told_to_all(memory: str) -> None:
    with nothing_left():
        found = start(2, lambda rank: {"transport": ("shm", "tcp")[rank]}, store=memory)
    assert errors(found) == ["ConfigMismatch"] * 2
    assert "transport shm" in str(found[0].error)
    assert "transport tcp" in str(found[0].error)


@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
def test_segments_that_differ_are_told_to_all(memory: str, transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTIVES_SEGMENT", "1K")
    with nothing_left():
        found = start(3, lambda rank: {"segment": 100} if rank == 2 else {}, store=memory, transport=transport)
    assert errors(found) == ["ConfigMismatch"] * 3
    assert all("segment 100 bytes" in str(o.error) and "segment 1024 bytes" in str(o.error) for o in found)


def test_numbers_of_sockets_that_differ_are_told_to_all(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTIVES_SOCKETS", "2")
    with nothing_left():
        found = start(3, lambda rank: {"sockets": 4} if rank == 2 else {}, store=memory, transport="tcp")
    assert errors(found) == ["ConfigMismatch"] * 3
    assert all("sockets 4" in str(o.error) and "sockets 2" in str(o.error) for o in found)


def test_a_segment_is_for_all_that_comes_of_a_group(memory: str) -> None:
    """Slots of that size make the shared memory of a group, and of its copy, larger or smaller."""

    def arenas(segment: int) -> set[int]:
        def rank(number: int) -> set[int]:
            settings: dict[str, Any] = {"rank": number, "size": 2, "transport": "shm", "segment": segment}
            with collectives.init(memory, **settings) as comm, comm.dup() as copy:
                assert np.array_equal(copy.allreduce(np.ones(70_001)), np.full(70_001, 2.0))
                found = {stat.st_size for stat in map(os.stat, _descriptors("memfd:collectives"))}
                comm.barrier()
                return found

        return set.union(*(o.value for o in together([lambda: rank(0), lambda: rank(1)])))

    (small,), (large,) = arenas(100), arenas(8 << 20)
    # Four to stage in and four that change hands for each rank, three for several, four with results, four with sums
    # and four with copies of these, and on the board two for each rank and two that cores give each other sums in.
    slots = 2 * (4 + 4) + 3 + 2 * 4 + 2 * 2 + 2
    assert slots * (8 << 20) <= large - small <= slots * (8 << 20) + (4 << 20)


def _descriptors(name: str) -> list[str]:
    """Of this process, those open on a file of that name."""
    paths = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return [path for path in paths if os.path.lexists(path) and name in os.readlink(path)]


def test_another_secret_is_refused(memory: str) -> None:
    with nothing_left():
        found = start(2, lambda rank: {"secret": bytes([rank]) * 32}, store=memory)
    assert set(errors(found)) <= {"AuthError", "OpTimeout"}
    assert "AuthError" in errors(found)


@pytest.mark.parametrize("transport", ["auto", "inproc", "shm", "tcp"])
@pytest.mark.parametrize("secret", [None, b"s" * 32])
def test_transports(memory: str, transport: str, secret: bytes | None) -> None:
    with nothing_left():
        found = start(3, store=memory, transport=transport, secret=secret)
        assert [o.value for o in found] == [3.0, 3.0, 3.0]


def test_auto_takes_the_shortest_way_there_is(memory: str) -> None:
    def rank(number: int) -> str:
        with collectives.init(memory, rank=number, size=2) as comm:
            return repr(comm)

    assert all("over inproc" in o.value for o in together([lambda: rank(0), lambda: rank(1)]))


def test_an_interface_that_is_not_there(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTIVES_INTERFACE", "nothere0")
    with nothing_left(), pytest.raises(ValueError, match="no interface that is up has the name or address 'nothere0'"):
        collectives.init(memory, rank=0, size=2, transport="tcp", insecure=True)


def test_the_environment_says_everything(memory: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secrets.write(tmp_path / "secret", secrets.mint())
    for name, value in {
        "STORE": memory,
        "NAME": "job",
        "TRANSPORT": "tcp",
        "TIMEOUT": "12.5",
        "SECRET_FILE": str(tmp_path / "secret"),
    }.items():
        monkeypatch.setenv(f"COLLECTIVES_{name}", value)

    def rank(number: int) -> tuple[str, str, float]:
        with collectives.init(rank=number, size=2) as comm:
            return comm.name, repr(comm), comm._runner.timeout

    for number, outcome in enumerate(together([lambda: rank(0), lambda: rank(1)])):
        assert outcome.value == ("job", f"<Communicator 'job': rank {number} of 2 over tcp, epoch 0>", 12.5)


def test_a_job_after_another_under_one_name(memory: str) -> None:
    for size in (2, 3, 2, 1):
        assert [o.value for o in start(size, store=memory)] == [float(size)] * size


def test_many_rounds_leave_nothing(tmp_path: Path, redis_plain: RedisServer) -> None:
    """Descriptors, threads, memory maps, keys and files after many rounds are what they were after a few."""
    directory = tmp_path / "store"

    def rounds(count: int) -> None:
        for number in range(count):
            store = (directory.as_uri(), redis_plain.url, "memory://rounds")[number % 3]
            assert [o.value for o in start(2, store=store, transport=("shm", "tcp", "inproc")[number % 3])] == [
                2.0,
                2.0,
            ]

    rounds(6)
    maps = len(Path("/proc/self/maps").read_text().splitlines())
    with nothing_left():
        rounds(60)
    assert len(Path("/proc/self/maps").read_text().splitlines()) < maps + 40
    assert [p for p in directory.rglob("*") if p.is_file()] == []
    with contextlib.closing(redis_plain.client()) as client:
        assert client.keys() == []


def test_a_rank_that_cannot_open_its_links_is_the_cause_on_all_ranks(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others fail because it leaves, and leave too: they must not be blamed."""

    def limited(rank: int, *arguments: Any, **options: Any) -> Any:
        if rank == 2:
            raise collectives.TransportUnavailable("epoll_create1: Too many open files")
        return link(rank, *arguments, **options)

    monkeypatch.setattr(init_module, "link", limited)
    with nothing_left():
        found = start(4, store=memory, transport="tcp")
    assert errors(found) == ["TransportUnavailable"] * 4
    for number, outcome in enumerate(found):
        assert "Too many open files" in str(outcome.error)
        assert number == 2 or "rank 2 (" in str(outcome.error)


class _Failing(PrefixStore):
    """A store whose server is lost once the leader has published that the group has formed: nobody can read it."""

    def __init__(self, store: Store, lost: threading.Event) -> None:
        super().__init__(store, "f")
        self._lost = lost
        for name in ("get", "set", "wait", "add", "compare_set", "delete"):
            setattr(self, name, functools.partial(self._call, getattr(store, name)))

    def _call(self, call: Callable[..., Any], keys: str | list[str], *arguments: Any) -> Any:
        lost = self._lost.is_set()
        if not lost and call.__name__ == "set" and str(keys).endswith("/go"):
            self._lost.set()
            return call(keys, *arguments)
        result = None if lost else call(keys, *arguments)
        if self._lost.is_set():
            raise Unreachable("the server is gone")
        return result


def test_a_store_lost_before_all_know_the_group_is_a_store_error_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader knows the group and waits for the others, which give up: their end is not the cause."""
    monkeypatch.setattr("collectives.rendezvous._participant._PATIENCE", 0.5)
    space, lost = MemoryStore("failing"), threading.Event()
    with nothing_left():
        found = start(3, lambda _: {"store": _Failing(space, lost)}, transport="tcp")
    assert errors(found) == ["StoreError"] * 3
    assert sum("has formed" in str(outcome.error) for outcome in found) == 1
    assert all("the server is gone" in str(outcome.error) and outcome.seconds < 10 for outcome in found)
    space.close()
