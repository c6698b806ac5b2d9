"""The test run itself: it leaves no process behind, and works where its parent ignores signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.leftovers import NAME, nothing_left
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parent.parent
# A process that outlives the one that started it, in a session of its own, and spins.
SPINNING = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True, stdout=2)
print(child.pid, flush=True)
"""
FAILING = """
import subprocess, sys, time

def test_that_never_ends(tmp_path):
    launcher = [sys.executable, "-m", "collectives", "run", "-n", "2", "--no-prefix", "--"]
    spin = "import os; print(os.getpid(), flush=True)\\nwhile True: pass"
    job = subprocess.Popen([*launcher, sys.executable, "-c", spin], stdout=subprocess.PIPE, text=True)
    with open(PIDS, "w") as file:
        file.write(f"{job.stdout.readline()}{job.stdout.readline()}")
    FAIL
    time.sleep(1000)
"""


several = pytest.mark.parametrize("processes", ["0", "2"])  # that the test run's tests are shared by


def gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def pytest_with(tmp_path: Path, ending: str, *arguments: str) -> tuple[subprocess.Popen[str], Path]:
    """A test run of its own, whose only test starts two ranks that spin."""
    pids, folder = tmp_path / "pids", tmp_path / "tests"
    folder.mkdir()
    for name in ("leftovers.py", "waiting.py"):
        (folder / name).symlink_to(ROOT / "tests" / name)
    (folder / "conftest.py").write_text(
        (ROOT / "tests" / "conftest.py").read_text().replace('"tests.redis_server"', "")
    )
    (folder / "test_it.py").write_text(FAILING.replace("PIDS", repr(str(pids))).replace("FAIL", ending))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(folder)]
    command += arguments
    run = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return run, pids


def two_lines(file: Path) -> bool:
    return file.exists() and len(file.read_text().split()) == 2


def spin() -> int:
    done = subprocess.run([sys.executable, "-c", SPINNING], check=True, stdout=subprocess.PIPE, text=True)
    return int(done.stdout)


def test_what_a_test_leaves_is_ended_and_named() -> None:
    found: list[int] = []
    with pytest.raises(AssertionError, match=r"left behind, and ended now:\n.*while True: pass"), nothing_left():
        found.append(spin())
    assert gone(found[0])


def test_what_ends_in_a_moment_is_not_a_failure() -> None:
    with nothing_left():
        sleeper = subprocess.Popen(["sleep", "0.2"])
    assert sleeper.wait(0) == 0


@several
def test_a_test_that_fails_leaves_no_ranks(tmp_path: Path, processes: str) -> None:
    run, pids = pytest_with(tmp_path, "assert False, 'as it happens'", "-n", processes)
    output = run.communicate(timeout=100)[0]
    assert "as it happens" in output and "left behind, and ended now:" in output
    assert two_lines(pids) and all(gone(int(pid)) for pid in pids.read_text().split())


@several
def test_a_test_run_that_is_killed_leaves_no_ranks(tmp_path: Path, processes: str) -> None:
    run, pids = pytest_with(tmp_path, "", "-n", processes)
    try:
        assert eventually(lambda: two_lines(pids), 60)
    finally:
        run.kill()
        run.communicate()
    assert eventually(lambda: all(gone(int(pid)) for pid in pids.read_text().split()))


def test_where_the_parent_ignores_signals_tests_of_signals_pass() -> None:
    """As in `nohup make test &`, in jobs of a script, and under many CI runners."""
    chosen = ("tests/collectives/commands/test_run_endings.py", "-k", "SIGINT or SIGHUP or ctrl_c or hangups")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]
    deaf = ["sh", "-c", 'trap "" INT HUP QUIT TERM USR1 USR2; exec "$@"', "sh", *command]
    done = subprocess.run(deaf, check=False, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout[-3000:]


def test_a_test_run_stays_as_deaf_as_it_was_told_to_be() -> None:
    """It does not end where `nohup` says that it must not; what it starts has signals as usual."""
    script = (
        "import signal, subprocess, sys, os; from tests.leftovers import inherit_nothing_ignored\n"
        "inherit_nothing_ignored(); os.kill(os.getpid(), signal.SIGHUP)\n"
        "look = 'import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_DFL)'\n"
        "print(subprocess.run([sys.executable, '-c', look], capture_output=True, text=True).stdout)\n"
    )
    deaf = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", sys.executable, "-c", script]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(deaf, check=False, capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "True", "")
    assert signal.getsignal(signal.SIGHUP) != signal.SIG_IGN and NAME in os.environ
