"""What ranks do where the shell limits files, address space or private memory (ulimit -f, -v, -d)."""

from __future__ import annotations

import json
import resource
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.warm.parents import python

MIB = 1 << 20

_RANK = """
import json, resource, sys, warnings
url, rank, size, transport, limits = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:]
if limits:
    resource.setrlimit(int(limits[0]), (int(limits[1]),) * 2)
import numpy as np, collectives
report = {}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        with collectives.init(url, rank=rank, size=size, transport=transport, join_timeout=30, timeout=30) as comm:
            x = comm.empty(1 << 18, "float64")
            x[:] = rank + 1
            report["sum"] = float(comm.allreduce(x).max())
            large = comm.empty(4 << 20, "float64")
            large[::4096] = rank + 1
            report["large"] = float(comm.allreduce(large)[4096])
            report["kinds"] = comm._linked.kinds
    except Exception as error:
        report["error"] = f"{type(error).__name__}: {error}"
report["warnings"] = [str(w.message) for w in caught if w.category is RuntimeWarning]
print(json.dumps(report))
"""


def ranks(tmp_path: Path, limits: Sequence[tuple[int, int] | None], transport: str) -> list[dict[str, Any]]:
    """What each rank says, of which there are as many as `limits`: a resource and its limit, or none."""

    url, size = f"file://{tmp_path}/store", str(len(limits))
    started = [
        subprocess.Popen(
            [python(), "-c", _RANK, url, str(rank), size, transport, *map(str, limit or ())],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, limit in enumerate(limits)
    ]
    try:
        found = []
        for process in started:
            text, _ = process.communicate(timeout=90)
            found.append(json.loads(text))
        return found
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_files_too_small_for_shared_memory_leave_tcp_to_all_alike(tmp_path: Path) -> None:
    for number, message in enumerate(ranks(tmp_path, [(resource.RLIMIT_FSIZE, MIB)] * 2, "auto")):
        assert "error" not in message, message["error"]
        assert message["sum"] == message["large"] == 3
        assert message["kinds"][1 - number] == "tcp"
        assert "limited to 1 MiB (ulimit -f)" in message["warnings"][0]
        assert "over TCP" in message["warnings"][0]


def test_where_one_rank_has_no_room_its_pairs_use_tcp(tmp_path: Path) -> None:
    found = ranks(tmp_path, [None, (resource.RLIMIT_FSIZE, MIB), None], "auto")
    assert [message.get("error") for message in found] == [None] * 3
    assert [message["kinds"] for message in found] == [
        ["self", "tcp", "shm"],
        ["tcp", "self", "tcp"],
        ["shm", "tcp", "self"],
    ]
    assert [message["sum"] for message in found] == [6] * 3
    assert [len(message["warnings"]) for message in found] == [0, 1, 0]


def test_shared_memory_that_was_asked_for_names_the_limit(tmp_path: Path) -> None:
    for message in ranks(tmp_path, [(resource.RLIMIT_FSIZE, MIB)] * 2, "shm"):
        assert message["error"].startswith("TransportUnavailable: ")
        assert "(ulimit -f)" in message["error"]


def test_larger_files_leave_a_smaller_heap(tmp_path: Path) -> None:
    for number, message in enumerate(ranks(tmp_path, [(resource.RLIMIT_FSIZE, 40 * MIB)] * 2, "auto")):
        assert "error" not in message, message["error"]
        assert message["sum"] == message["large"] == 3
        assert message["kinds"][1 - number] == "shm"
        assert message["warnings"] == []


@pytest.mark.parametrize("limited", [[1], [0, 1]])
def test_limited_address_space(tmp_path: Path, limited: list[int]) -> None:
    """A rank that cannot map as much as the machine has memory shares memory, without heaps."""
    limit = (resource.RLIMIT_AS, 4096 * MIB)
    found = ranks(tmp_path, [limit if rank in limited else None for rank in range(2)], "auto")
    for number, message in enumerate(found):
        assert "error" not in message, message["error"]
        assert message["sum"] == message["large"] == 3
        assert message["kinds"][1 - number] == "shm"


def test_limited_private_memory_leaves_threads_a_group(tmp_path: Path) -> None:
    text = """
import resource, sys, threading
import numpy as np, collectives
resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
def rank(number):
    with collectives.init("memory://data", rank=number, size=2, transport="inproc") as comm:
        sys.stdout.write(f"{comm.allreduce(comm.empty(3)).shape}\\n")  # in one call: two threads write
threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    found = subprocess.run([python(), "-c", text], check=False, capture_output=True, text=True, timeout=90)
    assert found.stdout.split("\n") == ["(3,)", "(3,)", ""], found.stderr


def test_address_space_for_a_few_ranks_but_not_for_many() -> None:
    text = """
import resource
from collectives.native import _engine
from collectives.core.links import Endpoints, Policy
from collectives.native.errors import TransportUnavailable
from collectives.transports.transport import Scope
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (512 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
print(_engine.why_no_room("shm", 2))
print(_engine.why_no_room("shm", 64))
endpoints = Endpoints(Policy("auto", Scope(False, None, 64), b""))
print(sorted(endpoints.member.addresses), endpoints.reasons)
endpoints.close()
try:
    Endpoints(Policy("shm", Scope(False, None, 64), b""))
except TransportUnavailable as error:
    print(error)
"""
    found = subprocess.run([python(), "-c", text], capture_output=True, text=True, timeout=90, check=True)
    few, many, offered, refused = found.stdout.splitlines()
    assert few == "None"
    assert many.startswith("address space is limited to") and "(ulimit -v)" in many
    assert "['inproc', 'tcp']" in offered and "(ulimit -v)" in offered
    assert refused.startswith("transport 'shm' cannot be used here: address space is limited")
