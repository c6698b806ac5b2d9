"""`collectives run` names the rank that failed first, whichever process ends, or is reaped, first.

Invariant: the order of ends is made by the ranks themselves, which wait for each other's ends, never by sleeping.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.collectives.commands.running import DEADLINE, command, environment, finish, gone, run
from tests.waiting import eventually

# Rank 1 of 3 fails between two calls; the others lose it. `linger` keeps it from ending before they have.
JOB = """
import os, sys, time
import numpy as np
import collectives

folder, how, linger = sys.argv[1:4]
comm = collectives.init()
open(f"{folder}/{comm.rank}.part", "w").write(str(os.getpid()))
os.rename(f"{folder}/{comm.rank}.part", f"{folder}/{comm.rank}.pid")
comm.barrier()

def linger_until_the_others_have_ended():
    for rank in (0, 2):
        pid = open(f"{folder}/{rank}.pid").read()
        while True:
            with open(f"/proc/{pid}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] == "Z":
                    break
            time.sleep(0.01)

if comm.rank == 1:
    if linger == "yes":
        import atexit
        atexit.register(linger_until_the_others_have_ended)  # as the unloading of a framework
        atexit.register(comm.close)
    if how == "exit":
        sys.exit(7)
    if how == "raise":
        raise ValueError("mine")
    os.kill(os.getpid(), int(how))
if comm.rank == 2 and len(sys.argv) > 4:
    try:
        comm.barrier()
    except collectives.PeerLost:
        sys.exit(9)  # a program that deals with it, and gives up
comm.barrier()
"""


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    (tmp_path / "job.py").write_text(JOB)

    def launch(*arguments: str) -> tuple[int, str]:
        done = run("-n", "3", "--grace", "20", str(tmp_path / "job.py"), str(tmp_path), *arguments)
        return done.returncode, done.stderr.decode()

    return launch


@pytest.mark.parametrize(("how", "code"), [("exit", 7), ("raise", 1)])
@pytest.mark.parametrize("others", [(), ("handle",)], ids=["uncaught", "handled"])
def test_a_rank_that_fails_first_and_ends_last_is_blamed(
    job: Callable[..., tuple[int, str]], how: str, code: int, others: tuple[str, ...]
) -> None:
    status, output = job(how, "yes", *others)
    assert status == code, output
    blamed = re.findall(r"rank (\d) \(process \d+\) (.*) after", output)
    assert blamed == [("1", f"exited with code {code}")], output
    if others:
        assert "rank 0 exited with code 1" in output and "rank 2 exited with code 9" in output
    else:
        assert "ranks 0, 2 exited with code 1" in output


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_rank_that_a_signal_ends_is_blamed(job: Callable[..., tuple[int, str]], number: signal.Signals) -> None:
    status, output = job(str(int(number)), "no")
    assert status == 128 + number, output
    assert re.findall(r"rank (\d) \(process \d+\) (.*) after", output) == [("1", f"was killed by {number.name}")], (
        output
    )


def test_of_those_that_ended_between_two_looks_the_first_to_end_is_blamed(tmp_path: Path) -> None:
    """The launcher is stopped meanwhile, so that it finds all three at once."""
    for rank in range(3):
        os.mkfifo(tmp_path / str(rank))
    script = f"echo $$; read line <{tmp_path}/$COLLECTIVES_RANK; exit 4$COLLECTIVES_RANK"
    with started([command("-n", "3", "sh", "-c", script)]) as (launcher,):
        assert launcher.stdout is not None
        lines = [launcher.stdout.readline().decode().split() for _ in range(3)]
        pids = {int(mark.strip("[]")): int(pid) for mark, pid in lines}
        launcher.send_signal(signal.SIGSTOP)
        for rank in (2, 0, 1):
            (tmp_path / str(rank)).write_text("now\n")
            assert eventually(lambda pid=pids[rank]: gone(pid), DEADLINE)  # type: ignore[misc]
        launcher.send_signal(signal.SIGCONT)
        status, output = finish(launcher)
    assert status == 42, output
    assert re.findall(r"rank (\d) \(process \d+\) (.*) after", output) == [("2", "exited with code 42")]


AFTER_A_LOSS = """
import os, sys
import collectives

name, then = os.environ["COLLECTIVES_NAME"], sys.argv[1]
comm = collectives.init()
comm.barrier()
if comm.rank == 1:
    os._exit(0)
try:
    comm.barrier()
except collectives.PeerLost:
    pass
assert os.path.exists(os.environ["COLLECTIVES_LOSS_FILE"])
comm.close()
if then == "again":
    with collectives.init(name=name + "-again", rank=comm.rank // 2, size=2) as smaller:
        smaller.barrier()
    assert not os.path.exists(os.environ["COLLECTIVES_LOSS_FILE"])
elif comm.rank == 2:
    raise ValueError("something of its own")
else:
    sys.exit(3)
"""


def test_a_loss_that_a_program_got_over_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(AFTER_A_LOSS)
    done = run("-n", "3", str(tmp_path / "job.py"), "again")
    assert done.returncode == 0, done.stderr.decode()
    done = run("-n", "3", "--grace", "20", str(tmp_path / "job.py"), "fail")
    output = done.stderr.decode()
    assert re.findall(r"rank (\d) \(process \d+\) (.*) after", output) == [("2", "exited with code 1")], output
    assert done.returncode == 1


def test_where_only_a_rank_of_another_host_can_have_failed_first(tmp_path: Path) -> None:
    """Rank 1 of 3 is another launcher's: that one blames it, the others' launcher says what its ranks have lost."""
    (tmp_path / "job.py").write_text(JOB)
    key = tmp_path / "key"
    key.write_bytes(bytes(32))
    key.chmod(0o600)
    (tmp_path / "store").mkdir()
    common = ("--nnodes", "3", "-n", "1", "--store", (tmp_path / "store").as_uri(), "--secret-file", str(key))
    job = (*common, "--run-id", "blame", str(tmp_path / "job.py"), str(tmp_path), "exit", "no")
    with started([command("--node-rank", str(node), *job) for node in range(3)]) as launchers:
        ends = [finish(launcher) for launcher in launchers]
    assert [status for status, _ in ends] == [1, 7, 1], ends
    assert re.search(r"rank 1 \(process \d+\) exited with code 7 after", ends[1][1])
    for rank in (0, 2):
        assert re.search(rf"rank {rank} \(process \d+\) exited with code 1 .* lost a peer: .*rank 1 ", ends[rank][1])


@contextlib.contextmanager
def started(commands: list[list[str]]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Launchers in the background, which do not outlive the block."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    launchers = [subprocess.Popen(line, env=environment(), **pipes) for line in commands]
    try:
        yield launchers
    finally:
        for launcher in launchers:
            launcher.kill()
            launcher.communicate(timeout=DEADLINE)
