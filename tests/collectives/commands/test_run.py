"""`collectives run` with real processes and real signals: what ranks are given, how they end, what is left.

Invariant: every process started here is waited for, and every wait has a deadline.
"""

from __future__ import annotations

import fcntl
import json
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

from collectives.commands import main as cli
from collectives.commands.supervise import REPEATED
from tests.waiting import eventually

ROOT = Path(cli.__file__).parents[2]
ENTRY = "from collectives.commands.main import main; main(prog_name='collectives')"
DEADLINE = 30.0
GRACEFUL = ("--grace", "20")  # long enough that nobody is stopped who is about to end

SHOW = """
import json, os, stat
secret = os.environ["COLLECTIVES_SECRET_FILE"]
print(json.dumps({
    "env": dict(os.environ),
    "cores": sorted(os.sched_getaffinity(0)),
    "mode": stat.S_IMODE(os.stat(secret).st_mode),
    "folder": stat.S_IMODE(os.stat(os.path.dirname(secret)).st_mode),
    "secret": open(secret).read().strip(),
    "group": os.getpgrp() == os.getpid(),
    "session": os.getsid(0),
    "argv": open("/proc/self/cmdline").read(),
}))
"""

PAIR = """
import os, signal, subprocess, sys
number, child = int(sys.argv[1]), len(sys.argv) > 2
started = [] if child else [subprocess.Popen([sys.executable, __file__, str(number), "child"])]
signal.signal(number, lambda *_: sys.exit(max([p.wait() for p in started], default=0)))
print(os.getpid())
signal.pause()
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", ENTRY, "run", *arguments]


def environment(**extra: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("COLLECTIVES_", "OMP_", "PYTHONUNBUFFERED"))}
    return {**kept, "PYTHONPATH": str(ROOT), "COLLECTIVES_CALIBRATE": "off", **extra}


def run(*arguments: str, stdin: bytes = b"", cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command(*arguments),
        check=False,
        input=stdin,
        capture_output=True,
        cwd=cwd,
        env=environment(**env),
        timeout=DEADLINE,
    )


def shown(result: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    """What `SHOW` printed, by rank."""
    assert result.returncode == 0, result.stderr.decode()
    lines = [re.fullmatch(rb"\[ *(\d+)\] (.*)", line) for line in result.stdout.splitlines()]
    return [json.loads(m[2]) for m in sorted((m for m in lines if m), key=lambda m: int(m[1]))]


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


def gone(pid: int) -> bool:
    """Whether process `pid` has ended (nobody may have reaped it yet)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def numbers(process: subprocess.Popen[bytes], lines: int) -> list[int]:
    """The process numbers that the ranks print, one per line."""
    assert process.stdout is not None
    return [int(process.stdout.readline().split()[-1]) for _ in range(lines)]


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=DEADLINE)
    return process.returncode, errors.decode()


# What a rank is given


def test_environment_of_the_ranks() -> None:
    ranks = shown(run("-n", "3", sys.executable, "-c", SHOW))
    envs = [rank["env"] for rank in ranks]
    assert [e["COLLECTIVES_RANK"] for e in envs] == ["0", "1", "2"]
    assert [e["COLLECTIVES_LOCAL_RANK"] for e in envs] == ["0", "1", "2"]
    for key, value in {"SIZE": "3", "LOCAL_SIZE": "3", "NAME": "default"}.items():
        assert {e[f"COLLECTIVES_{key}"] for e in envs} == {value}
    for shared in ("RUN_ID", "STORE", "SECRET_FILE"):
        assert len({e[f"COLLECTIVES_{shared}"] for e in envs}) == 1
    assert re.fullmatch("[0-9a-f]{32}", envs[0]["COLLECTIVES_RUN_ID"])
    assert envs[0]["COLLECTIVES_STORE"].startswith("file:///")
    assert {e["OMP_NUM_THREADS"] for e in envs} == {"1"}
    assert {e["PYTHONUNBUFFERED"] for e in envs} == {"1"}
    assert "COLLECTIVES_TRANSPORT" not in envs[0]
    assert all(rank["group"] and rank["session"] == os.getsid(0) for rank in ranks)


def test_the_secret_is_private_fresh_and_gone_afterwards() -> None:
    first, second = (shown(run("-n", "2", sys.executable, "-c", SHOW)) for _ in range(2))
    assert [r["mode"] for r in first] == [0o600] * 2
    assert [r["folder"] for r in first] == [0o700] * 2
    assert len(bytes.fromhex(first[0]["secret"])) == 32
    assert first[0]["secret"] == first[1]["secret"] != second[0]["secret"]
    assert first[0]["env"]["COLLECTIVES_RUN_ID"] != second[0]["env"]["COLLECTIVES_RUN_ID"]
    for rank in first:
        assert first[0]["secret"] not in rank["argv"] + json.dumps(rank["env"])
        assert not Path(rank["env"]["COLLECTIVES_SECRET_FILE"]).parent.exists()


def test_options_reach_the_ranks() -> None:
    options = ("--name", "job", "--store", "tcp://127.0.0.1:9", "--transport", "tcp", "--timeout", "2.5")
    (rank,) = shown(run("-n", "1", *options, "--env", "A=b=c", sys.executable, "-c", SHOW))
    expected = {"NAME": "job", "STORE": "tcp://127.0.0.1:9", "TRANSPORT": "tcp", "TIMEOUT": "2.5"}
    assert {key: rank["env"][f"COLLECTIVES_{key}"] for key in expected} == expected
    assert rank["env"]["A"] == "b=c"
    assert "OMP_NUM_THREADS" not in rank["env"]


def test_what_the_user_chose_is_kept() -> None:
    result = run("-n", "2", sys.executable, "-c", SHOW, OMP_NUM_THREADS="7", COLLECTIVES_STORE="redis://h:1/0")
    assert b"OMP_NUM_THREADS" not in result.stderr
    assert {r["env"]["OMP_NUM_THREADS"] for r in shown(result)} == {"7"}
    assert {r["env"]["COLLECTIVES_STORE"] for r in shown(result)} == {"redis://h:1/0"}


def test_the_thread_count_is_mentioned_once() -> None:
    assert run("-n", "3", "true").stderr.count(b"OMP_NUM_THREADS=1") == 1


def test_bind_gives_each_rank_its_share_of_the_cores() -> None:
    cores = sorted(os.sched_getaffinity(0))
    ranks = shown(run("-n", str(len(cores)), "--bind", sys.executable, "-c", SHOW))
    assert [rank["cores"] for rank in ranks] == [[core] for core in cores]


def test_addresses_are_the_same_only_where_asked_for() -> None:
    cores = len(os.sched_getaffinity(0))
    show = (
        "import ctypes; print(open('/proc/self/personality').read().strip(), "
        "ctypes.addressof(ctypes.c_int.in_dll(ctypes.pythonapi, 'Py_OptimizeFlag')))"
    )

    def addresses(*arguments: str) -> tuple[set[bool], int]:
        result = run(*arguments, sys.executable, "-c", show)
        found = [line.split()[-2:] for line in result.stdout.decode().splitlines()]
        fixed = {bool(int(personality, 16) & 0x0040000) for personality, _ in found}
        return fixed, len({address for _, address in found})

    assert addresses("-n", str(cores + 1)) == ({False}, cores + 1)
    assert addresses("-n", str(cores + 1), "--addresses", "random") == ({False}, cores + 1)
    assert addresses("-n", str(cores + 1), "--addresses", "same") == ({True}, 1)
    assert addresses("-n", "2", "--addresses", "same") == ({True}, 1)


@pytest.mark.parametrize("given", [None, "glibc.malloc.check=0"])
def test_tunables_of_the_c_library_are_left_alone(given: str | None) -> None:
    show = "import os; print(os.environ.get('GLIBC_TUNABLES'))"
    environment = [] if given is None else ["--env", f"GLIBC_TUNABLES={given}"]
    ranks = str(len(os.sched_getaffinity(0)) + 1)
    lines = run("-n", ranks, *environment, sys.executable, "-c", show).stdout.decode().splitlines()
    assert {line.split("] ", 1)[1] for line in lines} == {str(given)}


def test_several_hosts(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(bytes(32))
    key.chmod(0o600)
    common = ("--nnodes", "3", "--store", "redis://h", "--secret-file", str(key), "--run-id", "job 17", "-n", "2")
    ranks = [shown(run(*common, "--node-rank", i, sys.executable, "-c", SHOW)) for i in "02"]
    envs = [rank["env"] for node in ranks for rank in node]
    assert [e["COLLECTIVES_RANK"] for e in envs] == ["0", "1", "4", "5"]
    assert [e["COLLECTIVES_LOCAL_RANK"] for e in envs] == ["0", "1", "0", "1"]
    assert {e["COLLECTIVES_SIZE"] for e in envs} == {"6"}
    assert {e["COLLECTIVES_SECRET_FILE"] for e in envs} == {str(key)}
    assert len({e["COLLECTIVES_RUN_ID"] for e in envs}) == 1
    assert key.read_bytes() == bytes(32)


def test_scripts_modules_and_their_arguments(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import sys; print(sys.argv[1:], __name__)")
    for program in (["job.py"], ["-m", "job"], ["--", "job.py"]):
        result = run("-n", "1", *program, "-n", "--x", cwd=tmp_path)
        assert result.stdout == b"[0] ['-n', '--x'] __main__\n", result.stderr


def test_only_rank_0_reads_the_input() -> None:
    result = run("-n", "3", "sh", "-c", "echo got $(cat)", stdin=b"hello\n")
    assert sorted(result.stdout.splitlines()) == [b"[0] got hello", b"[1] got", b"[2] got"]


# How ranks end


@pytest.mark.parametrize(
    ("script", "code", "says"),
    [
        ("exit 0", 0, ""),
        ("test $COLLECTIVES_RANK != 1 || exit 3", 3, r"rank 1 \(process \d+\) exited with code 3 after \d+\.\d s"),
        ("test $COLLECTIVES_RANK != 1 || kill -9 $$", 137, r"rank 1 \(process \d+\) was killed by SIGKILL after"),
        ("test $COLLECTIVES_RANK != 2 || kill -SEGV $$", 139, r"rank 2 \(process \d+\) was killed by SIGSEGV after"),
    ],
)
def test_exit_codes(script: str, code: int, says: str) -> None:
    result = run("-n", "3", "sh", "-c", script)
    assert result.returncode == code
    assert re.search(says, result.stderr.decode())


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


def test_a_program_that_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    result = run("-n", "2", str(broken), TMPDIR=str(tmp_path))
    assert result.returncode == 1
    assert b"rank 0 could not be started" in result.stderr
    assert os.listdir(tmp_path) == ["broken"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("-n 0 true", "0 is not in the range"),
        ("-n two true", "'two' is not a valid integer"),
        ("true", "Missing option '-n'"),
        ("-n 2", "Missing argument"),
        ("-n 2 absent.py", "there is no file absent.py"),
        ("-n 2 absent", "absent is neither a file nor a command"),
        ("-n 2 ./plain", "./plain is not executable"),
        ("-n 2 --timeout nan true", "nan is not a positive, finite number"),
        ("-n 2 --timeout 0 true", "0 is not a positive, finite number"),
        ("-n 2 --grace inf true", "inf is not a positive, finite number"),
        ("-n 2 --store ftp://x true", "the ranks can meet at file://, redis://, rediss://, tcp://"),
        ("-n 2 --env X true", "'X' is not of the form NAME=VALUE"),
        ("-n 2 --env COLLECTIVES_RANK=1 true", "COLLECTIVES_RANK is set by the launcher"),
        ("-n 1 --secret-file absent true", "No such file"),
        ("-n 1 --secret-file open true", "chmod 600 open"),
        ("-n 1 --secret-file short true", "holds 15 bytes"),
        ("-n 1 --nnodes 2 true", "needs the same --store, --secret-file, --run-id"),
        ("-n 1 --nnodes 2 --store tcp://h --secret-file key --run-id 1 true", "'tcp://h' names no port"),
        ("-n 1 --node-rank 1 true", "1 is not one of 1 hosts"),
        ("-n 999999 --bind true", "999999 ranks cannot have cores of their own"),
        ("-n 2 --nonsense true", "No such option"),
    ],
)
def test_bad_input_is_refused_before_anything_is_made(tmp_path: Path, arguments: str, says: str) -> None:
    for name, mode, length in (("plain", 0o600, 0), ("open", 0o644, 32), ("short", 0o600, 15), ("key", 0o600, 32)):
        (tmp_path / name).write_bytes(bytes(length))
        (tmp_path / name).chmod(mode)
    files = sorted(os.listdir(tmp_path))
    result = run(*arguments.split(), cwd=tmp_path, TMPDIR=str(tmp_path))
    assert result.returncode == 2
    assert says in result.stderr.decode()
    assert sorted(os.listdir(tmp_path)) == files


def test_help_names_every_command() -> None:
    arguments = [sys.executable, "-c", ENTRY, "--help"]
    result = subprocess.run(arguments, capture_output=True, env=environment(), timeout=DEADLINE, check=True)
    assert all(re.search(rf"^  {name} ", result.stdout.decode(), re.MULTILINE) for name in cli.COMMANDS)


def test_the_umask_does_not_decide_who_reads_the_secret(tmp_path: Path) -> None:
    script = "stat -c %a $COLLECTIVES_SECRET_FILE $(dirname $COLLECTIVES_SECRET_FILE)"
    permissive = subprocess.run(
        ["sh", "-c", 'umask 0; exec "$@"', "sh", *command("-n", "1", "--no-prefix", "sh", "-c", script)],
        capture_output=True,
        env=environment(TMPDIR=str(tmp_path)),
        timeout=DEADLINE,
        check=True,
    )
    assert permissive.stdout.split() == [b"600", b"700"]
    assert not os.listdir(tmp_path)


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
