"""Ranks that are processes get a communicator: exits, kills and interrupts leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.warm.parents import python

ROOT = Path(__file__).resolve().parents[3]
VARIABLES = [name for name in os.environ if name.startswith(("COLLECTIVES_", "SLURM_", "OMPI_", "PMI_"))]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLLECTIVES_CALIBRATE", "off")


SCRIPT = """
import json, sys
import numpy as np
import collectives
rank, size = int(sys.argv[1]), int(sys.argv[2])
comm = collectives.init({store!r}, rank=rank, size=size, join_timeout=30, timeout=30, {options})
print(json.dumps([comm.rank, float(comm.allreduce(np.array(1.0))), repr(comm)]), flush=True)
{rest}
"""


def process(folder: Path, rank: int, size: int, options: str = "", rest: str = "") -> subprocess.Popen[str]:
    code = SCRIPT.format(store=(folder / "store").as_uri(), options=options, rest=rest)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(
        [python(settings), "-c", code, str(rank), str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=settings,
    )


def test_processes_use_shared_memory_and_need_not_close(tmp_path: Path) -> None:
    children = [process(tmp_path, rank, 3) for rank in range(3)]
    for rank, child in enumerate(children):
        out, message = child.communicate(timeout=60)
        assert (child.returncode, message) == (0, "")
        assert json.loads(out) == [rank, 3.0, f"<Communicator 'default': rank {rank} of 3 over shm, epoch 0>"]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_killed_ranks_leave_nothing_and_are_missed_at_once(tmp_path: Path, transport: str) -> None:
    shared = set(os.listdir("/dev/shm"))
    rest = """
if rank != 1:
    try:
        comm.barrier()
    except collectives.PeerLost as error:
        print(json.dumps(error.ranks), flush=True)
else:
    sys.stdin.read()
"""
    children = [process(tmp_path, rank, 3, f"transport={transport!r}", rest) for rank in range(3)]
    assert all(child.stdout is not None and child.stdout.readline() for child in children)
    children[1].send_signal(signal.SIGKILL)
    began = time.monotonic()
    survivors = [children[0].communicate(timeout=30), children[2].communicate(timeout=30)]
    assert time.monotonic() - began < 20
    children[1].communicate(timeout=30)
    lost = [json.loads(out) for out, _ in survivors]
    assert all(lost)
    assert any(1 in ranks for ranks in lost)
    assert set(os.listdir("/dev/shm")) == shared


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_an_interrupted_rank_returns_at_once_and_its_peer_is_told(tmp_path: Path, transport: str) -> None:
    rest = """
if rank == 0:
    try:
        print("waiting", flush=True)
        comm.barrier()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    comm.close()
else:
    sys.stdin.read()
    try:
        comm.barrier()  # rank 0 did come to this one
        comm.barrier()
    except collectives.PeerLost as error:
        print(*error.ranks, flush=True)
"""
    first, second = (process(tmp_path, rank, 2, f"transport={transport!r}", rest) for rank in range(2))
    assert first.stdout is not None
    assert [first.stdout.readline() != "", first.stdout.readline()] == [True, "waiting\n"]
    first.send_signal(signal.SIGINT)
    assert first.stdout.readline() == "interrupted\n"
    out, message = first.communicate(timeout=30)
    assert (first.returncode, message) == (0, "")
    out, message = second.communicate(timeout=30)
    assert (second.returncode, out.splitlines()[1:], message) == (0, ["0"], "")


def test_a_group_that_is_interrupted_as_a_whole(tmp_path: Path) -> None:
    # A rank learns that its peer has gone while its own signal is pending: it must not end by an abort.
    rest = """
try:
    print("running", flush=True)
    x = comm.empty(2)
    try:
        while True:
            comm.allreduce(x, out=x)
    except collectives.PeerLost:
        sys.stdin.read()
except KeyboardInterrupt:
    pass
"""
    for attempt in range(6):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        children = [process(folder, rank, 2, "", rest) for rank in range(2)]
        for child in children:
            assert child.stdout is not None and child.stdout.readline() and child.stdout.readline() == "running\n"
        time.sleep(0.01 * attempt)
        for child in children:
            child.send_signal(signal.SIGINT)
        reported = [child.communicate(timeout=30)[1] for child in children]
        assert ([child.returncode for child in children], reported) == ([0, 0], ["", ""])


def test_threads_of_other_processes_are_not_reached_by_inproc(tmp_path: Path) -> None:
    found = [process(tmp_path, rank, 2, "transport='inproc'") for rank in range(2)]
    for child in found:
        _, message = child.communicate(timeout=60)
        assert child.returncode == 1
        assert "TransportUnavailable: rank" in message
        assert "are different processes" in message


@pytest.mark.parametrize("store", ["file", "tcp"])
@pytest.mark.parametrize("bad", [0, 1])
def test_a_rank_that_cannot_use_the_transport_tells_the_others(tmp_path: Path, store: str, bad: int) -> None:
    """Its address space is limited, so that it can share no memory."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = (tmp_path / "store").as_uri() if store == "file" else f"tcp://127.0.0.1:{free.getsockname()[1]}"
    code = f"""
import resource, sys
import collectives
from collectives.native import _engine
rank = int(sys.argv[1])
room = 1 << 30
while rank == {bad} and not _engine.why_no_room("shm", 3):
    room //= 2
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room, resource.RLIM_INFINITY))
try:
    collectives.init({url!r}, rank=rank, size=3, transport="shm", join_timeout=50)
except collectives.TransportUnavailable as error:
    print(error)
"""
    children = [
        subprocess.Popen(
            [python(), "-c", code, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        for rank in range(3)
    ]
    began = time.monotonic()
    ended = [child.communicate(timeout=60) for child in children]
    assert time.monotonic() - began < 30
    assert [message for _, message in ended] == ["", "", ""]
    assert len({out for out, _ in ended}) == 1
    assert ended[0][0].startswith(f"rank {bad} ({socket.gethostname()}): transport 'shm' cannot be used here: address ")


def test_a_rank_that_cannot_use_the_transport_does_not_wait_long_for_others(tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    code = f"import collectives; collectives.init({url!r}, rank=0, size=2, transport='nccl', join_timeout=50)"
    began = time.monotonic()
    done = subprocess.run([python(), "-c", code], capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)
    assert time.monotonic() - began < 40
    assert "TransportUnavailable: transport 'nccl' cannot be used here: " in done.stderr
