"""`collectives run` with real processes: what ranks get, what they write, and their exit codes.

Invariant: every process started here is waited for, and every wait has a deadline.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from collectives.commands import main as cli
from tests.collectives.commands.running import (
    DEADLINE,
    ENTRY,
    SHOW,
    command,
    environment,
    run,
    shown,
)


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
