"""Other systems beside ours: with a stand-in for PyTorch in the place of the real one, and everything else real."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
import venv
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from collectives.bench.cases import Case
from collectives.bench.gate import Gate
from collectives.bench.hosts import cores
from collectives.bench.peers import NAMES, gloo, peer, tensorflow
from collectives.bench.peers import environment as environments
from collectives.bench.peers.environment import NUMPY, CannotInstall, cache_folder, python_for
from collectives.bench.peers.processes import PeerCannot, PeerFailed, PeerProcesses
from collectives.bench.peers.worker import Worker
from collectives.bench.plan import PeerPlan
from collectives.bench.report import remaining
from tests.bench.running import bench, environment, table
from tests.collectives.groups import ranks

CASE = Case("allreduce", "float32", 4, "sum", -1, "auto", 2, 1000)
VERSION = f"py{sys.version_info.major}.{sys.version_info.minor}"
QUICK = ("-w", "1", "--iters", "3", "--rounds", "2", "-e", "8")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with Gloo's environment in it, complete."""
    base = tmp_path_factory.mktemp("cache")
    folder = base / "pycollectives" / "peers" / f"gloo-{VERSION}"
    venv.create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    shutil.copytree(Path(__file__).parent / "stand_in" / "torch", packages / "torch")
    (packages / "torch-9.dist-info").mkdir()
    (packages / "torch-9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9\n")
    (packages / "numpy.pth").write_text(f"{Path(np.__file__).parents[1]}\n")
    (folder / ".complete").write_text("\n".join([*gloo.REQUIREMENTS, *gloo.BARE, NUMPY]))
    return base


@pytest.fixture
def plan(cache: Path) -> PeerPlan:
    return PeerPlan("gloo", str(cache / "pycollectives" / "peers" / f"gloo-{VERSION}" / "bin" / "python"))


def test_side_by_side(cache: Path, tmp_path: Path) -> None:
    env = environment(XDG_CACHE_HOME=str(cache))
    done = bench("-n", "3", *QUICK, "--peers", "gloo", "--json", "both.json", folder=tmp_path, env=env)
    (line,) = table(done.stdout)
    assert len(line) == 16 and float(line[14]) > 0 and float(line[15]) > 0
    assert "# gloo: numpy" in done.stdout and "torch 9" in done.stdout and "ours/gloo" in done.stdout
    reported = json.loads((tmp_path / "both.json").read_text())
    assert reported["peers"]["gloo"] == {"numpy": np.__version__, "torch": "9"}
    found = reported["results"][0]["measurements"]["gloo"]
    assert found["wrong"] == 0 and [len(r) for r in found["rounds"]] == [3, 3] and len(found["rank_medians"]) == 3
    assert found["ours_over_this"] == pytest.approx(float(line[15]), abs=6e-4)


def test_side_by_side_on_input_that_is_written_anew(cache: Path, tmp_path: Path) -> None:
    env = environment(XDG_CACHE_HOME=str(cache))
    done = bench(*QUICK, "--renew", "--peers", "gloo", "--json", "both.json", folder=tmp_path, env=env)
    (line,) = table(done.stdout)
    assert line[13] == "0" and float(line[15]) > 0
    assert "buffers plain, written anew before each call" in done.stdout
    reported = json.loads((tmp_path / "both.json").read_text())
    assert reported["arguments"]["renew"] is True and reported["results"][0]["measurements"]["gloo"]["wrong"] == 0


def test_side_by_side_in_a_row(cache: Path, tmp_path: Path) -> None:
    env = environment(XDG_CACHE_HOME=str(cache))
    done = bench(*QUICK, "--row", "20", "--peers", "gloo", "--json", "both.json", folder=tmp_path, env=env)
    (line,) = table(done.stdout)
    assert line[13] == "0" and float(line[15]) > 0
    assert "of 20 calls in a row, of each the mean," in done.stdout
    reported = json.loads((tmp_path / "both.json").read_text())
    assert reported["arguments"]["row"] == 20 and reported["results"][0]["measurements"]["gloo"]["wrong"] == 0


def test_a_task_that_cannot_write_its_input_anew_says_so() -> None:
    class Fixed:
        rank = 0

        def barrier(self) -> None: ...

        def close(self) -> None: ...

        def task(self, case: Case) -> Fixed:
            return self

        def call(self) -> None: ...

        def wrong(self, salt: int) -> int:
            return 0

    worker = Worker(Fixed())
    command = {"do": "prepare", "case": asdict(CASE), "warmup": 1}
    assert worker.handle({**command, "renew": False, "row": 1}) == {}
    with pytest.raises(NotImplementedError, match="cannot be written anew"):
        worker.handle({**command, "renew": True, "row": 1})


def test_what_it_does_not_have(cache: Path) -> None:
    env = environment(XDG_CACHE_HOME=str(cache))
    done = bench(*QUICK, "-d", "float32,bfloat16", "-o", "sum,max,avg", "--peers", "gloo", env=env)
    reported = {(line[2], line[3]): line[14] != "N/A" for line in table(done.stdout)}
    assert reported == {
        (d, o): (d, o) == ("float32", "sum") for d in ("float32", "bfloat16") for o in ("sum", "max", "avg")
    }
    assert "# gloo: RuntimeError: the stand-in only adds" in done.stdout
    assert "# gloo: Gloo has no avg" in done.stdout
    assert "# gloo: NumPy alone has no bfloat16" in done.stdout


def test_its_mistakes_are_not_ours(cache: Path) -> None:
    done = bench(*QUICK, "--peers", "gloo", env=environment(XDG_CACHE_HOME=str(cache), STAND_IN="wrong"))
    (line,) = table(done.stdout)
    assert line[9] == "0" and line[14].endswith("!")


def test_its_end_is_not_ours(cache: Path) -> None:
    env = environment(XDG_CACHE_HOME=str(cache), STAND_IN="dies")
    done = bench("-w", "10", "--iters", "10", "-b", "8", "-e", "32", "--peers", "gloo", env=env)
    lines = table(done.stdout)
    assert [line[9] for line in lines] == ["0"] * 3 and [line[14] for line in lines] == ["N/A"] * 3
    assert done.stdout.count("# gloo: ") == 4  # its versions, and a reason for each size


def test_commands(plan: PeerPlan, tmp_path: Path) -> None:
    processes = PeerProcesses(plan, 2, str(tmp_path))
    try:
        processes.prepare(CASE, 1)
        assert processes.wrong(salt=1) == 0
        assert processes.elapsed(3) > 0
        times = processes.turn(4, 1)
        assert [t.shape for t in times] == [(4,), (4,)] and all((t > 0).all() for t in times)
        processes.finish()
        with pytest.raises(PeerCannot, match="the stand-in only adds"):
            processes.prepare(Case("allreduce", "float32", 4, "max", -1, "auto", 2, 10), 1)
        for bucket in (0, 1 << 10):
            processes.prepare(replace(CASE, trace="model", parts=(400, 1, 599), bucket=bucket), 1)
            assert processes.wrong(salt=2) == 0
            processes.finish()
        processes.prepare(CASE, 1)  # it goes on
    finally:
        processes.close()
    with pytest.raises(PeerFailed, match="has been ended"):
        processes.turn(1, 0)


def test_bound_ranks_leave_all_cores_to_others(plan: PeerPlan, tmp_path: Path) -> None:
    """Rank 0 starts them, and must not hand down the one core that it is bound to."""
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(every)})
    try:
        processes = PeerProcesses(plan, 2, str(tmp_path), every)
        try:
            assert [os.sched_getaffinity(process.pid) for process in processes._processes] == [every] * 2
            assert os.sched_getaffinity(0) == {min(every)}
        finally:
            processes.close()
    finally:
        os.sched_setaffinity(0, every)


def test_cores_of_all_ranks() -> None:
    assert ranks(2, cores) == [sorted(os.sched_getaffinity(0))] * 2


def test_a_python_without_it(tmp_path: Path) -> None:
    """The reason is the last output of the process."""
    bare = tmp_path / "bare"
    venv.create(bare)
    with pytest.raises(PeerFailed, match=r"gloo did not start: .*No module named"):
        PeerProcesses(PeerPlan("gloo", str(bare / "bin" / "python")), 2, str(tmp_path))


def test_our_own_ranks_sleep_meanwhile() -> None:
    def body(comm: Communicator) -> tuple[str, float]:
        with Gate(comm) as gate:
            before = time.thread_time()
            output = gate.while_asleep(lambda: f"{_busy(0.1):.0f} passed")
            return output, time.thread_time() - before

    (first, worked), (second, slept) = ranks(2, body)
    assert first == second == "0 passed"
    assert worked > 0.05 and slept < 0.05


def _busy(seconds: float) -> float:
    """Of processor time, however long that takes."""
    end = time.thread_time() + seconds
    while (left := end - time.thread_time()) > 0:
        pass
    return abs(left)


class Returning:
    """A system of one rank, which returns its results in new arrays."""

    rank = 0

    def __init__(self, mistake: int) -> None:
        self.mistake = mistake

    def empty(self, elements: int, dtype: Any) -> Any:
        return tensorflow.aligned(elements, dtype)

    def barrier(self) -> None: ...
    def close(self) -> None: ...
    def bind(self, case: Case, inp: Any, out: Any) -> tuple[Callable[[], Any], Any]:
        return lambda: inp + self.mistake, None


@pytest.mark.parametrize("mistake", [0, 1])
def test_results_in_new_arrays(mistake: int) -> None:
    worker = Worker(Returning(mistake))
    case = asdict(replace(CASE, ranks=1))
    assert worker.handle({"do": "prepare", "case": case, "warmup": 1, "renew": False, "row": 1}) == {}
    assert worker.handle({"do": "wrong", "salt": 1}) == {"wrong": mistake * CASE.count}
    with pytest.raises(NotImplementedError, match="makes new arrays"):
        worker.handle({"do": "prepare", "case": {**case, "parts": [1000]}, "warmup": 1, "renew": False, "row": 1})


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_memory_that_tensorflow_can_share(dtype: str) -> None:
    for elements in (1, 3, 1000):
        made = tensorflow.aligned(elements, np.dtype(dtype))
        assert made.shape == (elements,) and made.dtype == dtype and made.ctypes.data % 64 == 0


def test_ports_of_tensorflows_servers(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda rank: tensorflow._everyones(rank + 7000, tmp_path, 3, rank), range(3)))
    assert found == [[7000, 7001, 7002]] * 3


def test_nobody_takes_the_port_of_tensorflows_server() -> None:
    with closing(tensorflow._own_port()) as held:
        port = held.getsockname()[1]
        with closing(socket.socket()) as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with closing(socket.create_server(("", port))) as server:  # asks to reuse the address, as gRPC does
            assert server.getsockname()[1] == port


@pytest.mark.parametrize("name", NAMES)
def test_what_a_peer_has_to_offer(name: str, tmp_path: Path) -> None:
    system = peer(name)
    assert all("==" in requirement for requirement in (*system.REQUIREMENTS, *system.BARE))
    commands = system.commands(Path("/env/bin/python"), ["-I", "x"], 3)
    assert all(command[0].startswith("/env/bin/") for command in commands)
    assert len(commands) in (1, 3) and isinstance(system.environment(str(tmp_path)), dict)


def test_a_complete_environment_is_used_as_it_is(cache: Path, plan: PeerPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    output: list[str] = []
    assert python_for("gloo", output.append, show=False) == plan.python
    assert output == []


def test_an_installation_says_that_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a log there is no progress bar: minutes without a word looked like a hang."""
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\necho Collecting everything\necho\nwhile [ ! -e $0.go ]; do sleep 0.05; done\nexit 3\n")
    slow.chmod(0o755)
    monkeypatch.setattr(environments, "EVERY", 0.1)
    output: list[str] = []

    def still(line: str) -> None:
        output.append(line)
        if line == "Collecting everything":
            Path(f"{slow}.go").touch()

    with pytest.raises(CannotInstall, match="failed with code 3\nCollecting everything"):
        environments._pip(slow, ("all",), still)
    assert output[-1] == "Collecting everything" and {*output[:-1]} <= {"pip starts", "Collecting everything"}


@pytest.mark.parametrize(
    ("done", "seconds", "reported"),
    [
        (0, 0.0, "1 of 8"),
        (2, 10.0, "3 of 8, about 30 s left"),
        (2, 100.0, "3 of 8, about 5 min left"),
        (8, 9.0, "8 of 8, about 0 s left"),
    ],
)
def test_how_much_is_left(done: int, seconds: float, reported: str) -> None:
    assert remaining(done, 8, seconds) == reported


def test_an_installation_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("XDG_CACHE_HOME", str(tmp_path)), ("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(tmp_path))):
        monkeypatch.setenv(name, value)
    output: list[str] = []
    with pytest.raises(CannotInstall, match=r"mpich==5.0.2(.|\n)*failed with code 1(.|\n)*No matching distribution"):
        python_for("mpich", output.append, show=False)
    assert len(output) == 1 and "installing mpich==" in output[0]
    assert not (cache_folder() / f"mpich-{VERSION}" / ".complete").exists()
