"""Ordinary arrays that are large enough are read out of their owner's process, where that is possible."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from collectives import Communicator, OpTimeout, algorithms
from tests.collectives.groups import ranks
from tests.warm.parents import python

MAP_FIXED = 0x10
SYS_MEMFD_SECRET = 447
SIZES = (8_000, 9_001, 70_000, 300_001)  # around the sizes from which it is done, in float64

SCRIPT = """
import hashlib
import numpy as np
import collectives

comm = collectives.init()
rng = np.random.default_rng(comm.rank)
digest = hashlib.sha256()
for n in (1000, 70_000, 1_000_003):
    x = rng.standard_normal(n)
    for out in (
        *(comm.allreduce(x, algorithm=a) for a in ("one_shot", "two_shot", "ring")),
        comm.allreduce(x.copy(), out=x),
        comm.allgather(x),
        comm.broadcast(x, 1),
        comm.alltoall(np.resize(x, (comm.size, n // 2))),
    ):
        digest.update(out.tobytes())
    if comm.rank == 0:
        comm.send(x, 1)
    elif comm.rank == 1:
        digest.update(comm.recv(np.empty(n), 0).tobytes())
with open(f"digest{comm.rank}", "w") as file:
    file.write(digest.hexdigest())
comm.close()
"""


@pytest.fixture(autouse=True)
def also_where_it_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTIVES_PULL", "1")


@pytest.mark.parametrize("size", [2, 3])
def test_every_algorithm_moves_large_ordinary_arrays(size: int) -> None:
    names = [a.name for a in algorithms.algorithms("allreduce", size)]

    def body(comm: Communicator) -> None:
        for n in SIZES:
            mine = np.arange(n) % 1013 + comm.rank * 1.0
            expected = np.arange(n) % 1013 * float(size) + sum(range(size))
            for name in names:
                assert np.array_equal(comm.allreduce(mine, algorithm=name), expected), (name, n)
                x = mine.copy()
                comm.allreduce(x, out=x, algorithm=name)
                assert np.array_equal(x, expected), (name, n, "in place")
            everyones = comm.allgather(mine)
            assert all(np.array_equal(part, np.arange(n) % 1013 + r) for r, part in enumerate(everyones))
            swapped = comm.alltoall(np.tile(mine, (size, 1)))
            assert np.array_equal(swapped, everyones)
            assert np.array_equal(comm.broadcast(mine.copy(), size - 1), everyones[-1])

    ranks(size, body, transport="shm")


@pytest.mark.parametrize("size", [2, 3])
def test_long_messages_that_ranks_only_exchange(size: int) -> None:
    n = (32 << 20) // 8 + 12_345  # from 32 MiB on they are staged

    def body(comm: Communicator) -> None:
        x, out = np.empty((size, n)), np.empty((size, n))
        for turn in range(3):
            for peer in range(size):
                x[peer] = np.arange(n) % 1013 + 10 * comm.rank + peer + turn
            out.fill(-1.0)
            comm.alltoall(x, out=out)
            for peer in range(size):
                assert np.array_equal(out[peer], np.arange(n) % 1013 + 10 * peer + comm.rank + turn)

    ranks(size, body, transport="shm")


@pytest.mark.parametrize("kind", ["file", "slice"])
def test_memory_of_other_kinds(kind: str, tmp_path: Path) -> None:
    def body(comm: Communicator) -> None:
        n = 200_000
        if kind == "file":
            path = tmp_path / f"array{comm.rank}"
            np.full(n, comm.rank + 1.0).tofile(path)
            x: np.ndarray = np.memmap(path, np.float64, "r")
        else:
            x = np.full(n + 3, comm.rank + 1.0)[3:]
        assert np.array_equal(comm.allgather(np.asarray(x)), [[1.0] * n, [2.0] * n])

    ranks(2, body, transport="shm")


class Secret:
    """Memory of this process that the kernel reads for nobody else, from byte `start` on."""

    def __init__(self, n: int, start: int):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        file = libc.syscall(SYS_MEMFD_SECRET, 0)
        if file < 0:
            pytest.skip(f"memfd_secret: {os.strerror(ctypes.get_errno())}")
        os.ftruncate(file, n)
        self._memory = mmap.mmap(-1, n)
        self.array = np.frombuffer(self._memory, np.float64)
        where = self.array.ctypes.data + start
        fixed = mmap.MAP_SHARED | MAP_FIXED
        assert libc.mmap(where, n - start, mmap.PROT_READ | mmap.PROT_WRITE, fixed, file, 0) == where
        os.close(file)


@pytest.mark.parametrize("start", [0, 1 << 20, 5 << 20], ids=["all", "from the second piece", "the last page"])
@pytest.mark.parametrize("who", ["one rank", "both"])
def test_memory_that_cannot_be_read_or_written_is_staged(start: int, who: str) -> None:
    n = (5 << 20) + mmap.PAGESIZE

    def body(comm: Communicator) -> None:
        x = Secret(n, start).array if comm.rank == 0 or who == "both" else np.empty(n // 8)
        mine = np.arange(x.size) % 1013 + float(comm.rank)
        both = np.arange(x.size) % 1013 + np.arange(2)[:, None]
        ordinary = mine.copy()
        for _ in range(2):
            x[:] = mine
            sent = comm._linked.group.bytes_sent()
            assert np.array_equal(comm.allgather(x), both)
            assert comm._linked.group.bytes_sent() == sent + x.nbytes  # what was refused is not counted twice
            assert np.array_equal(comm.allreduce(x, algorithm="one_shot"), both.sum(0))
            assert np.array_equal(comm.broadcast(x, 0), both[0])
            assert np.array_equal(comm.allgather(ordinary), both)
            if comm.rank == 0:
                comm.send(x, 1)
                assert np.array_equal(comm.recv(x, 1), both[1])
            else:
                assert np.array_equal(comm.recv(x, 0), both[0])
                comm.send(mine, 0)

    ranks(2, body, transport="shm")


def test_what_a_failed_sender_has_overwritten_is_not_taken_for_its_message() -> None:
    failed, received = threading.Event(), threading.Event()

    def body(comm: Communicator) -> None:
        x = np.full(500_000, 1.0)
        if comm.rank == 0:
            with pytest.raises(OpTimeout, match="waiting for rank 1"):
                comm.send(x, 1, timeout=0.3)
            x.fill(-1.0)
            failed.set()
            assert received.wait(20)
        else:
            assert failed.wait(20)
            with pytest.raises(OpTimeout, match=r"waiting for rank 1; rank 0.*has reported it"):
                comm.recv(x, 0)
            received.set()

    ranks(2, body, transport="shm")


def test_results_do_not_depend_on_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    digests = []
    everything = "cma,joint-copy,streaming,line-ownership,places"
    for pull, without in (("0", ""), ("1", ""), ("", ""), ("1", "joint-copy"), ("", everything)):
        command = [python(), "-m", "collectives.commands.main", "run", "-n", "2", str(script)]
        environment = {**os.environ, "COLLECTIVES_PULL": pull, "COLLECTIVES_TRANSPORT": "shm"}
        environment["COLLECTIVES_WITHOUT"] = without
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=60)
        digests.append([(tmp_path / f"digest{rank}").read_text() for rank in range(2)])
    assert len({tuple(digest) for digest in digests}) == 1
