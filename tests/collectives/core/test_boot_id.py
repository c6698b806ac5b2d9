"""Ranks of one host whose boot id is hidden, or another one for each, as in nspawn, some sandboxes and an empty /proc.

The real thing: each rank has a mount namespace of its own, in which a file, or an empty folder, lies over the kernel's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.collectives.commands.running import DEADLINE, environment

JOB = """
import json, sys
import numpy as np
import collectives
with collectives.init(timeout=20, join_timeout=20) as comm:
    total = comm.allreduce(np.array(comm.rank + 1)).tolist()
    halves = comm.split(comm.rank % 2)
    linked = [[c.local_rank, c.local_size, repr(c).split(" over ")[1].split(",")[0]] for c in (comm, halves)]
    print(json.dumps([total, halves.allreduce(np.array(comm.rank + 1)).tolist(), *linked]))
"""
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def _why_not() -> str | None:
    probe = subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True, timeout=DEADLINE)
    return None if probe.returncode == 0 else f"needs a mount namespace of its own: {probe.stderr.decode().strip()}"


_reason = _why_not()
pytestmark = pytest.mark.skipif(_reason is not None, reason=str(_reason))


def another(rank: int, folder: Path) -> str:
    (folder / f"boot-{rank}").write_text(f"00000000-0000-4000-8000-{rank:012d}\n")
    return f"mount --bind {folder}/boot-{rank} {BOOT_ID}"


def one_differs(rank: int, folder: Path) -> str:
    return another(rank, folder) if rank == 2 else "true"


def hidden(rank: int, folder: Path) -> str:
    return "mount -t tmpfs none /proc/sys/kernel/random"


def hidden_from_some(rank: int, folder: Path) -> str:
    return hidden(rank, folder) if rank % 2 else "true"


def no_proc(rank: int, folder: Path) -> str:
    return "mount -t tmpfs none /proc"


def ran(folder: Path, before: list[str], **env: str) -> list[list[object]]:
    """What each rank of JOB printed, all started with their command of `before` in mount namespaces of their own."""
    (folder / "job.py").write_text(JOB)
    (folder / "store").mkdir()
    place = {"SIZE": str(len(before)), "STORE": (folder / "store").as_uri(), "RUN_ID": folder.name}
    settings = environment(**{f"COLLECTIVES_{name}": value for name, value in place.items()}, **env)
    settings["PYTHONPATH"] = os.pathsep.join([settings["PYTHONPATH"], *sys.path])
    started = [
        subprocess.Popen(
            ["unshare", "-m", "sh", "-c", f'{command} && exec "$@"', "sh", sys.executable, str(folder / "job.py")],
            env={**settings, "COLLECTIVES_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank, command in enumerate(before)
    ]
    try:
        ends = [process.communicate(timeout=2 * DEADLINE) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait(DEADLINE)
    assert [process.returncode for process in started] == [0] * len(before), b"\n".join(err for _, err in ends).decode()
    return [json.loads(out) for out, _ in ends]


@pytest.mark.parametrize("boot_id", [another, one_differs, hidden, hidden_from_some, no_proc])
def test_ranks_of_one_host_share_memory_whatever_its_boot_id_says(boot_id: object, tmp_path: Path) -> None:
    assert callable(boot_id)
    found = ran(tmp_path, [boot_id(rank, tmp_path) for rank in range(4)])
    assert found == [[10, [4, 6][rank % 2], [rank, 4, "shm"], [rank // 2, 2, "shm"]] for rank in range(4)]


def test_the_same_over_tcp_without_a_secret_by_loopback(tmp_path: Path) -> None:
    found = ran(tmp_path, [another(rank, tmp_path) for rank in range(4)], COLLECTIVES_TRANSPORT="tcp")
    assert found == [[10, [4, 6][rank % 2], [rank, 4, "tcp"], [rank // 2, 2, "tcp"]] for rank in range(4)]
