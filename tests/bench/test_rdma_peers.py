"""Peers that are programs with a clock of their own: what they need, and what they print. They run in tests/verbs."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from collectives.bench.cases import Case
from collectives.bench.peers import perftest, rdma
from collectives.bench.peers.environment import python_for
from collectives.bench.peers.worker import Worker

CASE = Case("allreduce", "float32", 4, "sum", -1, "auto", 2, 1000)


class Program:
    """A task with a clock of its own, and its member."""

    rank = 0
    calls = 0

    def barrier(self) -> None: ...

    def close(self) -> None: ...

    def task(self, case: Case) -> Program:
        return self

    def call(self) -> None:
        self.calls += 1

    def times(self, iterations: int) -> list[float]:
        return [0.5] * iterations

    def wrong(self, salt: int) -> int:
        return 0


def test_a_task_with_a_clock_of_its_own() -> None:
    program = Program()
    worker = Worker(program)
    command = {"case": asdict(CASE), "warmup": 5, "renew": False, "row": 1, "iterations": 3}
    assert worker.handle({"do": "prepare", **command}) == {}
    assert worker.handle({"do": "elapsed", **command}) == {"seconds": 1.5}
    assert worker.handle({"do": "turn", **command}) == {"samples": [0.5] * 3}
    assert program.calls == 1


def test_what_perftest_prints() -> None:
    output = """\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]
#, usec
1, 6762.7
2, 3856.11
3, 4e+03
---------------------------------------
 8       5          3856.11        4046.72      3919.14
"""
    assert perftest._times(output) == pytest.approx([6.7627e-3, 3.85611e-3, 4e-3])
    assert perftest._times("Couldn't connect to 127.0.0.1:18515") == []


def test_what_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert python_for("perftest", print, show=False) == sys.executable
    with pytest.raises(FileNotFoundError, match="there is no ib_write_lat here: apt-get install perftest"):
        perftest.connect(str(tmp_path), 2, 0)
    program = tmp_path / "ib_write_lat"
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setattr(rdma, "_DEVICES", tmp_path / "infiniband")
    with pytest.raises(FileNotFoundError, match="there is no active RDMA port here"):
        perftest.connect(str(tmp_path), 2, 0)


def test_the_address_that_reaches_farthest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files as the kernel has them, for ports of RoCE, and of InfiniBand, where no address is needed."""
    addresses = (
        ("fe80:0000:0000:0000:1111:22ff:fe33:4444", "RoCE v2"),
        ("0000:0000:0000:0000:0000:ffff:0a4d:0001", "IB/RoCE v1"),
        ("0000:0000:0000:0000:0000:ffff:0a4d:0001", "RoCE v2"),
        ("0000:0000:0000:0000:0000:0000:0000:0000", "RoCE v2"),
    )
    for device, layer, state in (("a", "Ethernet", "ACTIVE"), ("b", "InfiniBand", "ACTIVE"), ("c", "Ethernet", "DOWN")):
        port = tmp_path / device / "ports" / "1"
        (port / "gids").mkdir(parents=True)
        (port / "gid_attrs" / "types").mkdir(parents=True)
        (port / "link_layer").write_text(f"{layer}\n")
        (port / "state").write_text(f"4: {state}\n")
        for index, (gid, kind) in enumerate(addresses):
            (port / "gids" / str(index)).write_text(f"{gid}\n")
            (port / "gid_attrs" / "types" / str(index)).write_text(f"{kind}\n")
    monkeypatch.setattr(rdma, "_DEVICES", tmp_path)
    assert rdma.ports() == [("a", 2), ("b", None)]
    assert [rdma.port_of(rank) for rank in range(3)] == [("a", 2), ("b", None), ("a", 2)]


def test_only_two_ranks_and_some_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rdma, "ports", lambda: [rdma.Port("a", 1)])
    monkeypatch.setattr(rdma, "which", lambda name: name)
    with pytest.raises(NotImplementedError, match="between two ranks"):
        perftest.connect(str(tmp_path), 3, 0).task(CASE)
    with pytest.raises(NotImplementedError, match="one byte or more"):
        perftest.connect(str(tmp_path), 2, 0).task(Case("barrier", "float32", 4, "sum", -1, "auto", 2, 0))
