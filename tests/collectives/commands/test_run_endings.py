"""`collectives run` with real processes and real signals: how ranks end, and what is left.

Invariant: every process started here is waited for, and every wait has a deadline.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from collectives.commands.supervise import REPEATED
from tests.collectives.commands.running import (
    DEADLINE,
    ENTRY,
    GRACEFUL,
    PAIR,
    ROOT,
    command,
    environment,
    finish,
    gone,
    numbers,
)
from tests.waiting import eventually

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts launchers in the background; kills those that a failed test leaves."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process: subprocess.Popen[bytes] = subprocess.Popen(
            command(*arguments),
            env=environment(),
            **{**pipes, **options},
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate(timeout=DEADLINE)


def test_the_first_failure_counts_and_the_others_may_end_by_themselves(start: Start, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "wait")
    script = f"""
    case $COLLECTIVES_RANK in
    0) exit 5;;
    *) trap 'exit 7' TERM; : <{tmp_path / "wait"}; exit 6;;
    esac"""
    launcher = start("-n", "3", *GRACEFUL, "sh", "-c", script)
    assert launcher.stderr is not None
    printed = b""
    while b"waiting up to 20 s for ranks 1, 2 to end" not in printed:
        printed += launcher.stderr.readline()
    with open(tmp_path / "wait", "w"):
        code, errors = finish(launcher)
    assert code == 5
    assert "ranks 1, 2 exited with code 6" in errors


def test_ranks_that_do_not_end_are_terminated_and_then_killed(start: Start) -> None:
    script = """
    test $COLLECTIVES_RANK = 0 || trap 'echo asked' TERM
    echo ready
    test $COLLECTIVES_RANK = 2 && exit 1
    while :; do sleep 1000; done"""
    launcher = start("-n", "3", "--grace", "0.5", "bash", "-c", script)
    output, errors = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == 1
    assert b"[1] asked" in output.splitlines()
    assert re.search("ranks 0, 1 still running: sending SIGTERM", errors.decode())
    assert re.search("rank 1 still running: sending SIGKILL", errors.decode())
    assert re.search("rank 0 was killed by SIGTERM", errors.decode())
    assert re.search("rank 1 was killed by SIGKILL", errors.decode())


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"])
def test_signals_go_to_all_ranks_and_their_children(start: Start, tmp_path: Path, name: str) -> None:
    (tmp_path / "pair.py").write_text(PAIR)
    number = int(getattr(signal, name))
    launcher = start("-n", "2", *GRACEFUL, str(tmp_path / "pair.py"), str(number))
    pids = numbers(launcher, 4)
    launcher.send_signal(number)
    assert finish(launcher)[0] == 0
    assert all(gone(pid) for pid in pids)


def test_a_rank_that_a_forwarded_signal_kills_is_a_failure(start: Start) -> None:
    launcher = start("-n", "2", *GRACEFUL, "sh", "-c", "echo $$; exec sleep 1000")
    numbers(launcher, 2)
    launcher.send_signal(signal.SIGTERM)
    code, errors = finish(launcher)
    assert code == 128 + signal.SIGTERM
    assert "was killed by SIGTERM" in errors


def test_repeating_ctrl_c_kills(start: Start) -> None:
    launcher = start("-n", "2", *GRACEFUL, "bash", "-c", "trap '' INT; echo $$; while :; do sleep 1000; done")
    pids = numbers(launcher, 2)
    launcher.send_signal(signal.SIGINT)
    assert launcher.stderr is not None
    while b"SIGINT sent to ranks 0, 1" not in launcher.stderr.readline():
        assert launcher.poll() is None
    time.sleep(REPEATED)  # a second one within this time is taken for the first
    launcher.send_signal(signal.SIGINT)
    code, errors = finish(launcher)
    assert code == 128 + signal.SIGKILL
    assert "SIGINT again: killing ranks 0, 1" in errors
    assert all(gone(pid) for pid in pids)


def test_a_launcher_that_was_ignoring_hangups_goes_on(start: Start) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    launcher = start("-n", "1", "sh", "-c", "echo $$; read x", stdin=subprocess.PIPE, preexec_fn=ignore)
    numbers(launcher, 1)
    launcher.send_signal(signal.SIGHUP)
    launcher.communicate(b"x\n", timeout=DEADLINE)
    assert launcher.returncode == 0


# What is left


def test_background_children_of_a_rank_end_with_the_job(start: Start) -> None:
    launcher = start("-n", "2", "sh", "-c", "sleep 1000 & echo $!")
    pids = numbers(launcher, 2)
    assert finish(launcher)[0] == 0
    assert eventually(lambda: all(gone(pid) for pid in pids), DEADLINE), "background children end"


def test_killing_the_launcher_leaves_nothing(start: Start) -> None:
    script = "dirname $COLLECTIVES_SECRET_FILE; sleep 1000 & echo $!; echo $$; wait"
    launcher = start("-n", "2", "sh", "-c", script)
    assert launcher.stdout is not None
    lines = [launcher.stdout.readline().split()[-1].decode() for _ in range(6)]
    pids = [int(line) for line in lines if line.isdecimal()]
    folder = Path(next(line for line in lines if not line.isdecimal()))
    assert len(pids) == 4 and folder.is_dir()
    launcher.kill()
    assert eventually(lambda: all(gone(pid) for pid in pids), DEADLINE), "the ranks and their children end"
    assert eventually(lambda: not folder.exists(), DEADLINE), "the private directory is removed"


ON_A_TERMINAL = """
import os, subprocess, sys
entry, root = sys.argv[1:]
rank = "import os; print('line', input(), os.getsid(0), 'alone', os.getpgrp() == os.getpid(), flush=True)"
command = [sys.executable, "-c", entry, "run", "-n", "1", "--no-prefix", sys.executable, "-c", rank]
print("session", os.getsid(0), flush=True)
sys.exit(subprocess.run(command, cwd=root).returncode)
"""


def test_a_rank_reads_our_terminal_and_stays_in_our_session() -> None:
    """Linux shares processor time out between sessions first: ranks in sessions of their own could not yield."""
    terminal, ours = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL, ENTRY, str(ROOT)],
        stdin=ours,
        stdout=ours,
        stderr=ours,
        env=environment(),
        preexec_fn=_with_terminal(ours),  # noqa: PLW1509 (no other thread here)
    )
    os.close(ours)
    try:
        os.write(terminal, b"hello\n")
        printed = read_all(terminal)
        assert process.wait(DEADLINE) == 0, printed
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    session = re.search(r"session (\d+)", printed)
    assert session, printed
    assert f"line hello {session[1]} alone True" in printed


def _with_terminal(terminal: int) -> Callable[[], None]:
    def before_exec() -> None:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY)

    return before_exec


def read_all(terminal: int) -> str:
    """Until nobody has the other end open any more."""
    printed = b""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        if not select.select([terminal], [], [], 1.0)[0]:
            continue
        try:
            printed += os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
    return printed.decode()
