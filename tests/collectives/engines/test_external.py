"""Engines of other packages: the examples of examples/plugins, as they are when they are installed."""

from __future__ import annotations

import importlib.util
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collectives
from collectives import (
    Aborted,
    Communicator,
    ConfigMismatch,
    DesyncError,
    OpTimeout,
    PeerLost,
    TransportUnavailable,
    engines,
)
from collectives.arrays.memory import HOST, Memory, memory_of
from collectives.engines import registry
from tests.collectives.arrays.stand_in_cupy import StandInCupy
from tests.collectives.groups import outcomes, ranks
from tests.rendezvous.threads import Outcome
from tests.waiting import AT_ONCE, eventually

PLUGINS = Path(__file__).parents[3] / "examples" / "plugins"
TRANSPORTS = ("inproc", "shm", "tcp")


def plugin(name: str) -> tuple[str, Any]:
    """The engine that the package's entry point names: the name there, and an instance."""
    text = (PLUGINS / name / "pyproject.toml").read_text()
    ((entry, target),) = re.findall(r'entry-points."pycollectives.engines"\]\n(\w+) = "([\w:]+)"', text)
    module, _, kind = target.partition(":")
    spec = importlib.util.spec_from_file_location(module, PLUGINS / name / f"{module}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return entry, getattr(loaded, kind)()


@contextmanager
def registered(*found: Any) -> Iterator[None]:
    for engine in found:
        engines.register(engine)
    try:
        yield
    finally:
        for engine in found:
            engines.unregister(engine.name)


@pytest.fixture(params=["engine_gather", "engine_late"])
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    name, found = plugin(request.param)
    assert name == found.name
    with registered(found):
        yield found


class Spoiled:
    """An engine that does what a test says, on one rank."""

    name = "spoiled"

    def __init__(self, behave: Callable[[Any, Any, Any], Any]) -> None:
        self.behave = behave
        self.seen: list[tuple[Any, Memory]] = []

    def accepts(self, collective: str, nbytes: int, memory: Memory, size: int) -> str | None:
        return "a test" if collective == "allreduce" else None

    def collective(self, call: Any, memory: Memory) -> Any:
        self.seen.append((call, memory))
        behave = self.behave

        class Task:
            def run(self, x: Any, out: Any, group: Any) -> Any:
                return behave(x, out, group)

        return Task()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_it_runs_allreduces_beside_native_calls(engine: Any, transport: str) -> None:
    def body(comm: Communicator) -> None:
        for count in (1, 1000):
            x = np.arange(count, dtype=np.float32) + comm.rank
            wanted = 3.0 * np.arange(count) + 3
            for _ in range(3):
                assert (comm.allreduce(x) == wanted).all()
                assert comm.allgather(np.array([comm.rank])).ravel().tolist() == [0, 1, 2]
                out = np.empty_like(x)
                assert comm.allreduce(x, out=out) is out and (out == wanted).all()
            assert (comm.allreduce_async(x).wait() == wanted).all()
            assert (comm.allreduce(x, algorithm="ring") == wanted).all()
            assert (comm.allreduce(x, algorithm=engine.name) == wanted).all()
        plan = comm.allreduce_plan(x, out=x)
        plan()
        assert (x == wanted).all()
        child = comm.dup()
        assert (child.allreduce(np.ones(3)) == 3.0).all()
        child.close()
        text = comm.explain("allreduce", 4096)
        assert f"engine      {engine.name}, for host memory: " in text
        assert f"engine      {engine.name}" not in comm.explain("broadcast", 4096)

    ranks(3, body, transport=transport)


def test_a_rank_that_comes_late_is_named(engine: Any) -> None:
    over = threading.Event()

    def body(comm: Communicator) -> Any:
        if comm.rank == 1:
            assert over.wait(30.0)
            return None
        with pytest.raises(OpTimeout) as caught:
            comm.allreduce(np.ones(3), timeout=0.2)
        with pytest.raises(OpTimeout):
            comm.barrier()
        over.set()
        return caught.value.late

    assert ranks(2, body)[0] == (1,)


@pytest.mark.parametrize(
    "other",
    [
        lambda comm: comm.allgather(np.ones(3)),
        lambda comm: comm.allreduce(np.ones(4)),
        lambda comm: comm.allreduce(np.ones(3, np.float32)),
        lambda comm: comm.allreduce(np.ones(3), algorithm="ring"),
    ],
    ids=["collective", "shape", "dtype", "engine"],
)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ranks_that_call_other_things_disagree(engine: Any, other: Any, transport: str) -> None:
    def body(comm: Communicator) -> None:
        other(comm) if comm.rank else comm.allreduce(np.ones(3))
        comm.barrier()

    found = outcomes(2, body, transport=transport, timeout=10.0)
    assert all(outcome.error is not None for outcome in found)
    assert any(isinstance(outcome.error, DesyncError) for outcome in found), [outcome.error for outcome in found]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_error_of_the_engine_breaks_the_communicator_on_all_ranks(transport: str) -> None:
    def behave(x: Any, out: Any, group: Any) -> Any:
        if group.rank == 1:
            raise ZeroDivisionError("one rank's device fell off")
        return x

    def body(comm: Communicator) -> list[str]:
        message = []
        for _ in range(2):
            with pytest.raises(Aborted) as caught:
                comm.allreduce(np.ones(3))
            message.append(str(caught.value))
        with pytest.raises(Aborted, match="device fell off"):
            comm.barrier()
        return message

    with registered(Spoiled(behave)):
        found = ranks(3, body, transport=transport)
    words = "allreduce: engine 'spoiled' failed on rank 1: ZeroDivisionError: one rank's device fell off"
    assert found == [[words, words]] * 3


def test_an_engine_that_does_not_complete_in_time_is_named_by_its_rank() -> None:
    class Never(Spoiled):
        def collective(self, call: Any, memory: Memory) -> Any:
            class Task:
                def start(self, x: Any, out: Any, group: Any, complete: Any) -> None:
                    if group.rank == 0:
                        complete(x, None)

            return Task()

    def body(comm: Communicator) -> Any:
        with pytest.raises(OpTimeout, match=r"engine 'spoiled' (failed|did not complete) on rank 1") as caught:
            comm.allreduce(np.ones(3), timeout=0.3)
        return caught.value.late

    with registered(Never(lambda *_: None)):
        assert ranks(2, body) == [(1,), (1,)]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_each_call_is_one_record_under_the_name_of_its_engine(engine: Any, transport: str) -> None:
    def body(comm: Communicator) -> list[Any]:
        before = len(comm.dump()["operations"])
        comm.allreduce(np.ones(1000, np.float32))
        comm.allgather(np.ones(2))
        comm.allreduce_async(np.ones(3)).wait()
        operations = comm.dump()["operations"][before:]
        for operation in operations:
            assert operation["begin"] <= operation["first"] <= operation["end"] and operation["error"] is None
        return [(o["sequence"], o["collective"], o["dtype"], o["engine"], o["state"]) for o in operations]

    found = ranks(2, body, transport=transport)
    assert found[0] == found[1]
    first = found[0][0][0]
    (_, *one), (_, *native), (_, *other) = found[0]
    assert [sequence for sequence, *_ in found[0]] == [first, first + 1, first + 2]
    assert one == ["allreduce", "float32", engine.name, "done"] and other == [
        "allreduce",
        "float64",
        engine.name,
        "done",
    ]
    assert native[0] == "allgather" and native[2] != engine.name


def test_a_failure_is_in_the_record() -> None:
    def behave(x: Any, out: Any, group: Any) -> Any:
        raise ZeroDivisionError("no device")

    def body(comm: Communicator) -> Any:
        with pytest.raises(Aborted):
            comm.allreduce(np.ones(3))
        return comm.dump()["operations"][-1]

    with registered(Spoiled(behave)):
        (record,) = ranks(1, body)
    assert (record["engine"], record["state"]) == ("spoiled", "failed") and "no device" in record["error"]


def wait_until_begun(comm: Communicator) -> None:
    def has_begun() -> bool:
        return any(o["state"] == "started" and o["engine"] == "spoiled" for o in comm.dump()["operations"])

    assert eventually(has_begun)


class Held(Spoiled):
    """Returns the sum once the test lets it."""

    def __init__(self) -> None:
        super().__init__(self._sum)
        self.go = threading.Event()

    def _sum(self, x: Any, out: Any, group: Any) -> Any:
        total = np.sum(group.allgather(x), axis=0)
        assert self.go.wait(20.0)
        if out is not None:
            np.copyto(out, total)
        return total if out is None else out


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_calls_in_the_background_keep_their_order(transport: str) -> None:
    held = Held()
    both = threading.Barrier(2)

    def body(comm: Communicator) -> list[Any]:
        y = np.zeros(3)
        works = [
            comm.allreduce_async(np.ones(3), out=y),
            comm.allreduce_async(np.full(3, 2.0)),
            comm.allgather_async(y),  # reads what the first one writes
            comm.allreduce_async(np.full(3, 3.0)),
        ]
        assert not any(work.done() for work in works)
        wait_until_begun(comm)
        with pytest.raises(OpTimeout, match="still running"):
            works[0].wait(0.05)
        both.wait(20.0)
        held.go.set()
        found = [work.wait().tolist() for work in works]
        assert comm.allreduce(np.ones(3)).tolist() == [2.0] * 3  # after those in the background
        return found

    with registered(held):
        found = ranks(2, body, transport=transport)
    assert found == [[[2.0] * 3, [4.0] * 3, [[2.0] * 3] * 2, [6.0] * 3]] * 2


def test_a_blocking_call_waits_for_those_in_the_background() -> None:
    held = Held()

    def body(comm: Communicator) -> list[float]:
        work = comm.allreduce_async(np.ones(1))
        timer = threading.Timer(0.2, held.go.set)
        timer.start()
        total = comm.allreduce(np.full(1, 5.0))
        assert work.done() and work.wait().tolist() == [2.0]
        timer.join()
        return total.tolist()

    with registered(held):
        assert ranks(2, body) == [[10.0]] * 2


def test_closing_ends_a_call_whose_engine_is_at_work() -> None:
    held = Held()

    def body(comm: Communicator) -> None:
        work = comm.allreduce_async(np.ones(3))
        wait_until_begun(comm)
        comm.close()
        with pytest.raises(Aborted, match="being closed"):
            work.wait()
        held.go.set()

    with registered(held):
        ranks(1, body)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_other_ranks_learn_that_an_engine_was_interrupted(transport: str) -> None:
    def behave(x: Any, out: Any, group: Any) -> Any:
        if group.rank == 1:
            raise KeyboardInterrupt
        return x

    def body(comm: Communicator) -> Any:
        began = time.monotonic()
        try:
            comm.allreduce(np.ones(3))
        except KeyboardInterrupt:
            with pytest.raises(Aborted, match="engine 'spoiled' failed on rank 1: KeyboardInterrupt"):
                comm.barrier()
            return "interrupted"
        except Aborted as error:
            assert time.monotonic() - began < AT_ONCE
            return str(error)

    with registered(Spoiled(behave)):
        found = ranks(3, body, transport=transport, timeout=20.0)
    assert found.pop(1) == "interrupted"
    assert all("engine 'spoiled' failed on rank 1: KeyboardInterrupt" in text for text in found), found


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_is_gone_while_others_wait_for_their_engine_is_named(transport: str) -> None:
    held = Held()

    def body(comm: Communicator) -> Any:
        work = comm.allreduce_async(np.ones(3))
        if comm.rank == 1:
            wait_until_begun(comm)
            comm.close()
            return None
        with pytest.raises(PeerLost) as caught:
            work.wait(15.0)
        return caught.value.ranks

    with registered(held):
        found = ranks(2, body, transport=transport)
    held.go.set()
    assert found == [(1,), None]


def test_it_gets_device_arrays_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def behave(x: Any, out: Any, group: Any) -> Any:
        assert type(x) is StandInCupy
        return x

    def copied(*_: Any) -> Any:
        raise AssertionError("copied to host memory before an engine was chosen")

    monkeypatch.setattr(collectives.arrays.device, "to_host", copied)
    spoiled = Spoiled(behave)
    with registered(spoiled), collectives.init(rank=0, size=1) as comm:
        x = StandInCupy(np.ones((2, 3), np.float32))
        assert comm.allreduce(x) is x
        with pytest.raises(AssertionError, match="before an engine was chosen"):
            comm.allgather(x)  # which the C++ engine runs
    ((call, memory),) = spoiled.seen
    assert memory.kind == "cuda" and call == engines.Collective("allreduce", "float32", (2, 3), "sum")


def test_where_an_array_lies() -> None:
    assert memory_of(np.ones(3)) == HOST and memory_of(b"bytes") == HOST
    assert memory_of(StandInCupy(np.ones(3))).kind == "cuda"
    x = StandInCupy(np.ones(3))
    x.device = type("Device", (), {"id": 2})()
    assert memory_of(x) == Memory("cuda", 2) and str(memory_of(x)) == "cuda:2" and str(HOST) == "host"


def test_deterministic_groups_use_none(engine: Any) -> None:
    def body(comm: Communicator) -> bool:
        return (comm.allreduce(np.ones(3)) == 2.0).all() and engine.name not in comm.explain("allreduce", 24)

    assert all(ranks(2, body, deterministic=True))


def test_a_block_refuses_them(engine: Any) -> None:
    with (
        collectives.init(rank=0, size=1) as comm,
        pytest.raises(ValueError, match="the engine of another package"),
        comm.group(),
    ):
        comm.allreduce(np.ones(3))


def test_ranks_have_to_have_the_same_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.rendezvous.threads import together

    _, found = plugin("engine_gather")
    mine = threading.local()
    monkeypatch.setattr("collectives.core.init.registered", lambda: getattr(mine, "engines", ()))

    def rank(number: int) -> None:
        mine.engines = (found,) if number else ()
        collectives.init("memory://engines", rank=number, size=2, join_timeout=20.0).close()

    got: list[Outcome[None]] = together([lambda: rank(0), lambda: rank(1)])
    (error,) = [o.error for o in got if isinstance(o.error, ConfigMismatch)][:1]
    assert "engines gather" in str(error)


def test_an_installed_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "engine_gather-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: engine-gather\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pycollectives.engines]\ngather = engine_gather:GatherEngine\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(PLUGINS / "engine_gather"))
    registry._installed.cache_clear()
    try:
        assert [e.name for e in engines.registered()] == ["gather"]
        (info / "entry_points.txt").write_text("[pycollectives.engines]\ngather = engine_gather:Missing\n")
        registry._installed.cache_clear()
        with pytest.raises(TransportUnavailable, match=r"engine 'gather' \(engine_gather:Missing\) cannot be loaded"):
            engines.registered()
    finally:
        registry._installed.cache_clear()
        sys.modules.pop("engine_gather", None)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (object(), TypeError, "has none"),
        (type("E", (), {"name": "half"})(), TypeError, "no method accepts, collective"),
        (type("E", (), {"name": "native", "accepts": print, "collective": print})(), ValueError, "cannot be the name"),
        (type("E", (), {"name": "A b", "accepts": print, "collective": print})(), ValueError, "cannot be the name"),
    ],
)
def test_what_is_no_engine_is_refused(wrong: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        engines.register(wrong)


def test_a_name_is_taken_once() -> None:
    _, found = plugin("engine_late")
    with registered(found), pytest.raises(ValueError, match="an engine 'late' already"):
        engines.register(found)
    with pytest.raises(ValueError, match="no engine 'late' was registered"):
        engines.unregister("late")
