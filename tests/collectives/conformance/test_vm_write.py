"""The link of examples/plugins/link_vm_write: that it is a plug-in, what it writes, and how it fails."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collectives
from collectives import Communicator, DesyncError, OpTimeout, PeerLost, TransportUnavailable
from collectives.native import _engine, plugins
from collectives.transports import registry
from collectives.transports.host import HostIdentity
from collectives.transports.transport import Place
from tests.collectives.conformance.plugins import EXAMPLE
from tests.collectives.core.test_desync import CALLS, check
from tests.collectives.groups import outcomes, ranks
from tests.launched import launched

pytestmark = pytest.mark.usefixtures("site")


# --- what is installed


def test_the_headers_can_be_compiled_by_themselves(tmp_path: Path) -> None:
    include = Path(collectives.get_include())
    headers = sorted(str(path.relative_to(include)) for path in include.rglob("*.hpp"))
    assert "collectives/link/link.hpp" in headers and "collectives/engine/task.hpp" in headers
    rooms = {name.split("/")[1] for name in headers}
    assert rooms == {"base", "reduce", "link", "engine"}
    source = tmp_path / "all.cpp"
    source.write_text("".join(f"#include <{name}>\n" for name in headers))
    options = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I", str(include)]
    subprocess.run(["c++", *options, str(source)], check=True, cwd=tmp_path)


def test_nothing_else_is_exported() -> None:
    assert _engine.__file__ is not None
    table = subprocess.run(
        ["nm", "-DC", "--defined-only", _engine.__file__], check=True, capture_output=True, text=True
    )
    names = [line.split(maxsplit=2)[2] for line in table.stdout.splitlines()]
    assert any(name.startswith("collectives::register_transport(") for name in names)
    assert [name for name in names if "collectives::" not in name] == ["PyInit__engine"]
    rooms = re.compile(r"collectives::(Shm|Tcp|Inproc|Executor|Group|Control|Links|Board|Pool|Arena|Schedule)")
    assert [name for name in names if rooms.search(name)] == []


# --- loading


def test_an_object_for_another_interface_is_not_loaded(site: Path, tmp_path: Path) -> None:
    data = (site / "link_vm_write" / "_link.so").read_bytes()
    mark = f"pycollectives interface {_engine.INTERFACE}".encode()
    assert data.count(mark) == 1
    other = tmp_path / "other.so"
    other.write_bytes(data.replace(mark, mark[:-1] + b"0"))
    with pytest.raises(
        TransportUnavailable, match=f"version 0 .*this library has version {_engine.INTERFACE}: build it again"
    ):
        plugins.load(other, "vm-write")


def test_why_an_object_cannot_be_loaded(site: Path, tmp_path: Path) -> None:
    with pytest.raises(TransportUnavailable, match=r"cannot be read.*No such file"):
        plugins.load(tmp_path / "missing.so", "new")
    text = tmp_path / "text.so"
    text.write_text("no object at all")
    with pytest.raises(TransportUnavailable, match="no plug-in of this library"):
        plugins.load(text, "new")
    text.write_bytes(f"pycollectives interface {_engine.INTERFACE}\0".encode())
    with pytest.raises(TransportUnavailable, match=r"text\.so cannot be loaded: "):
        plugins.load(text, "new")
    assert registry.transport("vm-write").available() is None
    copy = shutil.copy(site / "link_vm_write" / "_link.so", tmp_path / "copy.so")
    with pytest.raises(TransportUnavailable, match="a transport 'vm-write' already"):
        plugins.load(copy, "vm-write")
    with pytest.raises(TransportUnavailable, match="cannot be used: there is a transport 'vm-write' already"):
        plugins.load(copy, "new")


def test_why_ranks_cannot_meet() -> None:
    transport = registry.transport("vm-write")
    listener = transport.listen(collectives.transports.transport.Scope(network=False))
    try:
        name, beacon = listener.addresses
        here = HostIdentity.here()
        mine = Place(0, here, (name, beacon))
        assert transport.reaches(mine, Place(1, here, (name, beacon))) is None
        assert "does not offer" in str(transport.reaches(mine, Place(1, here, ())))
        pid, *rest = beacon.split("-")
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        there = Place(1, here, (name, "-".join([f"{gone.pid:x}", *rest])))
        assert "no such process" in str(transport.reaches(mine, there))
        other = Place(1, here, (name, "-".join([pid, rest[0], "1", "2"])))
        assert "another process's" in str(transport.reaches(mine, other))
        for wrong in ("", "1-2", "x-1-2-3", f"0-{'-'.join(rest)}", f"{1 << 40:x}-1-2-3"):
            with pytest.raises(ValueError):
                transport.reaches(mine, Place(1, here, (name, wrong)))
    finally:
        listener.close()


# --- what it writes

COUNTED = """
import numpy as np, collectives, link_vm_write
with collectives.init(transport="vm-write", timeout=30) as comm:
    for count in (1, 1000, 100_003, 1_000_000):
        x = np.full(count, comm.rank + 1.0, np.float32)
        assert (comm.allreduce(x) == 6).all()
        comm.broadcast(x, 1)
        assert (x == 2).all()
        assert comm.alltoall(np.arange(3 * count)).shape == (3 * count,)
    assert "peers       2 over vm-write" in comm.explain("allreduce", 1000)
    comm.barrier()
    sent = comm._linked.group.bytes_sent()
    print(link_vm_write.payload_written() == sent > 20_000_000, sent)
"""


def test_each_byte_is_written_into_the_other_process(tmp_path: Path) -> None:
    """What the link counts as sent is what process_vm_writev wrote of messages, in all ranks."""
    script = tmp_path / "counted.py"
    script.write_text(COUNTED)
    done = launched(3, script).succeeded()
    for lines in done.lines.values():
        assert lines[-1].startswith("True"), lines


def test_the_processor_copies_nothing() -> None:
    """By construction: there is no call in it that could."""
    copies = re.compile(
        r"memcpy|memmove|copy_bytes|copy_by|copy_streaming|std::copy|ranges::copy|\.insert\(|\.assign\("
    )
    sources = sorted((EXAMPLE / "src").glob("*.[ch]pp"))
    assert len(sources) == 6
    assert {path.name: copies.findall(path.read_text()) for path in sources} == {path.name: [] for path in sources}


# --- how it fails

RANK = """
import os, sys, signal, numpy as np, collectives
rank = int(sys.argv[2])
comm = collectives.init(sys.argv[1], rank=rank, size=2, name="killed", transport="vm-write", timeout=30, insecure=True)
print("ready", flush=True)
sys.stdin.readline()
try:
    comm.allreduce(np.ones(1_000_000))
except collectives.PeerLost as error:
    print(error.ranks, error, flush=True)
"""


def test_a_killed_peer_is_lost(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    both = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, store, str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": ":".join(sys.path), "COLLECTIVES_CALIBRATE": "off"},
        )
        for rank in (0, 1)
    ]
    try:
        for process in both:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        assert both[0].stdin is not None and both[0].stdout is not None
        both[0].stdin.write("\n")
        both[0].stdin.flush()
        both[1].send_signal(signal.SIGKILL)
        line = both[0].stdout.readline()
        assert line.startswith("(1,) rank 1") and "is gone during operation" in line
        assert both[0].wait(10) == 0
    finally:
        for process in both:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("allreduce", "allreduce max"),
        ("allreduce", "allreduce of more"),
        ("allreduce", "barrier"),
        ("broadcast", "broadcast from 1"),
        ("broadcast", "allreduce"),
        ("allgather", "alltoall"),
        ("reduce", "reduce to 1"),
        ("gather", "scatter"),
        ("allgatherv", "allreduce_many"),
    ],
)
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_call_different_things_all_say_so(size: int, one: str, other: str) -> None:
    assert {one, other} <= CALLS.keys()
    for odd, elements in ((0, 12), (1, 131_076)):
        check(size, "vm-write", one, other, odd, elements)


@pytest.mark.parametrize("collective", ["broadcast", "recv", "allgather", "allreduce"])
@pytest.mark.parametrize("count", [10, 1_000_000])
def test_after_a_timeout_nobody_writes_to_the_receivers_arrays(collective: str, count: int) -> None:
    """The peer comes late, finds a place posted, and must not write there."""
    timed_out, tried = threading.Event(), threading.Event()

    def call(comm: Communicator, x: Any, out: Any) -> None:
        match collective:
            case "broadcast":
                comm.broadcast(out if comm.rank == 0 else x, 1)
            case "recv":
                comm.recv(out, 1) if comm.rank == 0 else comm.send(x, 0)
            case "allgather":
                comm.allgather(x, out=out)
            case _:
                comm.allreduce(x, out=out)

    def body(comm: Communicator) -> str:
        comm.barrier()
        x = np.full(count, 1.0 + comm.rank)
        out = np.full((comm.size, count) if collective == "allgather" else count, 7.0)
        if comm.rank == 0:
            with pytest.raises(OpTimeout) as caught:
                call(comm, x, out)
            before = out.copy()
            timed_out.set()
            assert tried.wait(20)
            assert (out == before).all(), "it was written to after the call had ended"
            if collective in ("broadcast", "recv"):
                assert (out == 7).all()
            return str(caught.value)
        assert timed_out.wait(20)
        with pytest.raises((PeerLost, OpTimeout)):
            call(comm, x, out)
        tried.set()
        return ""

    found = ranks(2, body, transport="vm-write", timeout=0.3)
    assert "timed out" in found[0] and "waiting for rank 1" in found[0]
    assert "may still write" not in found[0]


def test_a_desync_names_both_calls() -> None:
    def body(comm: Communicator) -> None:
        comm.broadcast(np.ones(5), 0) if comm.rank == 0 else comm.allreduce(np.ones(5))
        comm.barrier()

    for outcome in outcomes(2, body, transport="vm-write"):
        assert isinstance(outcome.error, DesyncError)
        assert "broadcast(float64, 5 elements, root 0)" in str(outcome.error)
        assert "allreduce(sum, float64, 5 elements)" in str(outcome.error)


def test_the_package_can_be_imported() -> None:
    assert import_module("link_vm_write").payload_written() >= 0
