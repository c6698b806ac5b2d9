"""`collectives doctor`: what is right passes, and each thing that is wrong is named, with what to do about it.

Invariant: what is wrong is really so, in a process of its own: no resource, variable or file is only pretended.
Kernel settings alone, which tests must not change, are read from a made-up root.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from collectives.commands import checks, doctor
from collectives.commands import main as cli
from collectives.commands.checks import without_password
from collectives.rendezvous import secret
from collectives.rendezvous.tcp import TcpStore
from tests.redis_server import PASSWORD, RedisServer, free_port
from tests.warm.parents import python

ROOT = Path(cli.__file__).parents[2]
ENTRY = "from collectives.commands.main import main; main(prog_name='collectives')"

Report = dict[str, Any]


def run(
    *arguments: str, before: Callable[[], None] | None = None, env: Mapping[str, str] = {}, **more: str
) -> tuple[subprocess.CompletedProcess[str], Report]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("COLLECTIVES_")} | {"XDG_CACHE_HOME": os.devnull}
    settings = {**kept, "PYTHONPATH": str(ROOT), **env, **more}
    done = subprocess.run(
        [python(settings), "-c", ENTRY, "doctor", "--json", *arguments],
        check=False,
        capture_output=True,
        text=True,
        env=settings,
        preexec_fn=before,
        timeout=60,
    )
    assert done.stderr == "", done.stderr
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["ok"] else 1)
    return done, report


def problem(report: Report, section: str, severity: str = "broken") -> str:
    """The text and advice of the one problem of that section."""
    (found,) = [p for p in report["problems"] if p["section"] == section]
    assert found["severity"] == severity and found["advice"]
    return f"{found['problem']} {found['advice']}"


def test_a_machine_on_which_all_is_well() -> None:
    _, report = run("-n", "1")
    assert report["ok"] and not [p for p in report["problems"] if p["severity"] == "broken"]
    facts = report["sections"]
    assert [facts["transports"][scheme] for scheme in ("inproc", "shm", "tcp")] == ["works"] * 3
    assert facts["processor"]["usable"] >= 1 and facts["processor"]["instruction sets"]
    assert any("127.0.0.1/8" in address for address in facts["network"]["lo"])
    assert facts["job"] == {"launcher": "none"}
    assert "choices for 1 rank over self" in facts


def test_for_people_problems_come_first() -> None:
    section = checks.Section("place", {"one": ["a", "b"]}, [checks.Problem("hint", "it is slow", "wait")])
    other = checks.Section("thing", {"two": 2}, [checks.Problem("broken", "it is gone", "buy another")])
    assert doctor.as_text([section, other]).splitlines() == [
        *("\x1b[31m\x1b[1mbroken\x1b[0m  it is gone", "        buy another"),
        *("\x1b[33m\x1b[1mhint  \x1b[0m  it is slow", "        wait"),
        *("", "\x1b[1mplace\x1b[0m", "  one  a", "       b"),
        *("", "\x1b[1mthing\x1b[0m", "  two  2"),
    ]


def test_what_auto_would_choose_is_what_select_says() -> None:
    _, report = run("-n", "3")
    from collectives.schedule.select import select
    from collectives.schedule.table import Situation

    output = report["sections"]["choices for 3 ranks over shm"]
    choice = select("allreduce", 1 << 40, Situation(3, "shm"), lambda name: True)
    assert output["allreduce"].endswith(f"any size: {choice.algorithm}")


def test_ranks_that_outnumber_the_cores() -> None:
    _, report = run("-n", "2", before=lambda: os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]))
    assert report["sections"]["processor"]["usable"] == 1
    assert "2 ranks share 1 core:" in problem(report, "processor", "hint")
    assert report["ok"]


def test_too_few_descriptors() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    _, report = run("-n", "200", before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard)))
    text = problem(report, "limits")
    assert "128 open files are too few for 200 ranks" in text and "ulimit -n 422" in text


def test_several_sockets_take_as_many_descriptors() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))

    _, report = run("-n", "20", before=few)
    assert "few" not in str(report["problems"])
    _, report = run("-n", "20", before=few, COLLECTIVES_SOCKETS="8")
    assert "128 open files are too few for 20 ranks" in problem(report, "limits")
    _, report = run(COLLECTIVES_SOCKETS="17")
    assert "a link has 1 to 16 sockets, not 17" in problem(report, "limits")


def test_limited_address_space() -> None:
    _, report = run(before=lambda: resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30)))
    assert "comm.empty() gives ordinary arrays" in problem(report, "limits", "hint")
    assert report["sections"]["transports"]["shm"] == "works"


def test_limited_files() -> None:
    _, report = run(before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
    assert "comm.empty()" in problem(report, "limits", "hint")
    assert "(ulimit -f)" in report["sections"]["transports"]["shm"]
    assert "(ulimit -f)" in problem(report, "transports", "hint")
    assert report["ok"]
    _, report = run(
        before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)), COLLECTIVES_TRANSPORT="shm"
    )
    assert "(ulimit -f)" in problem(report, "transports")
    _, report = run(before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30)))
    assert report["sections"]["transports"]["shm"] == "works"


def test_an_instruction_set_that_is_not_there() -> None:
    _, report = run(COLLECTIVES_ISA="mmx")
    assert "COLLECTIVES_ISA=mmx" in problem(report, "processor")
    assert report["sections"]["transports"]["shm"] == "available, not tried"


def test_a_misspelt_variable() -> None:
    _, report = run(COLLECTIVES_TRANSPROT="tcp")
    assert "nothing reads COLLECTIVES_TRANSPROT; COLLECTIVES_TRANSPORT is meant?" in problem(report, "job", "hint")


def test_every_variable_that_is_read_is_known() -> None:
    packages = ("native", "transports", "rendezvous", "collectives", "bench")
    read = set()
    for path in [p for package in packages for p in (ROOT / package).rglob("*") if p.suffix in (".py", ".cpp")]:
        words = path.read_text().replace('"COLLECTIVES_" + ', "").split("COLLECTIVES_")[1:]
        read |= {
            word[: next((i for i, c in enumerate(word) if not (c.isupper() or c == "_")), len(word))] for word in words
        }
    known = set(checks.VARIABLES)
    assert known <= read
    macros = ("MODULE", "TESTS", "SANITIZE", "TRANSPROT", "CUDA_", "NCCL_")
    defined = ("", "PLUGIN", "ELEMENT", "OP")  # macros, the last two of the leader's kernels
    unknown = {name for name in read - known if name not in defined and not name.startswith(macros)}
    assert not unknown


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"COLLECTIVES_RANK": "4", "COLLECTIVES_SIZE": "4"}, "COLLECTIVES_RANK=4 is not a rank of COLLECTIVES_SIZE=4"),
        ({"COLLECTIVES_RANK": "one", "COLLECTIVES_SIZE": "4"}, "COLLECTIVES_RANK='one' is not a number"),
        ({"COLLECTIVES_RANK": "1", "COLLECTIVES_SIZE": "4"}, "does not know where to meet the others"),
        ({"COLLECTIVES_TIMEOUT": "nan"}, "COLLECTIVES_TIMEOUT='nan' is not a finite number"),
    ],
)
def test_an_environment_that_makes_no_sense(env: dict[str, str], says: str) -> None:
    assert says in problem(run(env=env)[1], "job")


def test_a_launcher_is_recognised(tmp_path: Path) -> None:
    _, report = run(COLLECTIVES_RANK="1", COLLECTIVES_SIZE="3", COLLECTIVES_STORE=tmp_path.as_uri())
    job = report["sections"]["job"]
    assert (job["launcher"], job["rank"]) == ("collectives", "1 of 3")
    assert "choices for 3 ranks over shm" in report["sections"]
    assert report["sections"]["store"]["tried"].startswith("set, get and delete work")


def test_a_transport_that_does_not_exist() -> None:
    _, report = run(COLLECTIVES_TRANSPORT="pigeons")
    assert "pigeons" in problem(report, "transports")


@pytest.mark.skipif(any(Path("/sys/class/infiniband").glob("*")), reason="this machine has RDMA devices")
def test_rdma_that_is_missing_is_named() -> None:
    _, report = run(COLLECTIVES_TRANSPORT="verbs")
    said = problem(report, "transports")
    assert said.startswith("verbs: "), said
    assert "libibverbs" in said or "no RDMA device" in said, said
    assert report["sections"]["rdma"]["devices"].startswith("none")


def test_an_unknown_interface() -> None:
    _, report = run(COLLECTIVES_INTERFACE="eth77")
    assert "'eth77'" in problem(report, "network")


def test_the_secret(tmp_path: Path) -> None:
    path = tmp_path / "job.key"
    secret.write(path, secret.mint())
    _, report = run(COLLECTIVES_SECRET_FILE=str(path))
    assert report["sections"]["secret"]["holds"] == "32 bytes, for its owner alone"
    content = path.read_text().strip()
    path.chmod(0o644)
    done, report = run(COLLECTIVES_SECRET_FILE=str(path))
    assert "mode 0644" in problem(report, "secret")
    assert content not in done.stdout
    _, report = run(COLLECTIVES_SECRET_FILE=str(tmp_path / "nowhere"))
    assert "cannot be read: No such file" in problem(report, "secret")


# --- stores


def test_a_directory_is_left_as_it_was(tmp_path: Path) -> None:
    _, report = run("--store", (tmp_path / "deep" / "store").as_uri())
    assert report["sections"]["store"]["served by"] == "the file system"
    assert not list(tmp_path.iterdir())
    (tmp_path / "there").mkdir()
    assert run("--store", (tmp_path / "there").as_uri())[1]["ok"]
    assert [p.name for p in tmp_path.iterdir()] == ["there"] and not list((tmp_path / "there").iterdir())


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    _, report = run("--store", (tmp_path / "file").as_uri())
    assert "cannot use the directory" in problem(report, "store")


def test_redis(redis_plain: RedisServer, redis_password: RedisServer) -> None:
    _, report = run("--store", redis_plain.url)
    assert report["sections"]["store"]["tried"].startswith("set, get and delete work")
    done, report = run(COLLECTIVES_STORE=redis_password.url)
    assert report["ok"]
    assert report["sections"]["store"]["url"] == f"redis://...@127.0.0.1:{redis_password.port}/0"
    assert PASSWORD not in done.stdout and "secret" not in report["sections"]["job"]["COLLECTIVES_STORE"]
    client = redis_plain.client()
    assert not client.keys("*doctor*")
    client.close()


def test_redis_with_a_wrong_password(redis_password: RedisServer) -> None:
    done, report = run("--store", f"redis://:guessed@127.0.0.1:{redis_password.port}")
    assert "invalid username-password pair" in problem(report, "store")
    assert "guessed" not in done.stdout


def test_no_server_is_an_error_by_the_deadline() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"127.0.0.1:{held.getsockname()[1]}"
        _, report = run("--store", f"redis://{address}")
    assert address in problem(report, "store") and "refused" in problem(report, "store")


def test_a_store_that_rank_0_will_serve() -> None:
    _, report = run("--store", f"tcp://127.0.0.1:{free_port()}")
    assert report["sections"]["store"]["served by"] == "rank 0, on this host, once the job starts"


def test_a_store_that_is_served(tmp_path: Path) -> None:
    key = secret.mint()
    secret.write(tmp_path / "key", key)
    served = TcpStore.serve("127.0.0.1", 0, secret=key)
    try:
        _, report = run("--store", served.url, COLLECTIVES_SECRET_FILE=str(tmp_path / "key"))
        assert report["sections"]["store"]["served by"] == "a running job"
        assert "the store has a secret and this rank has none" in problem(run("--store", served.url)[1], "store")
    finally:
        served.close()


@pytest.mark.parametrize("url", ["carrier://pigeon", "tcp://127.0.0.1", "file://relative"])
def test_urls_that_are_wrong(url: str) -> None:
    assert "correct the URL" in problem(run("--store", url)[1], "store")


def test_mpi_needs_its_job() -> None:
    assert "mpiexec" in run("--store", "mpi://")[1]["sections"]["store"]["tried"]


# --- what a kernel says, from a made-up root


def test_kernel_settings_that_matter(tmp_path: Path) -> None:
    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    write("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size advise [never] deny force\n")
    write("proc/sys/net/core/somaxconn", "128\n")
    write("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t262144\n")
    found = checks.kernel(200, str(tmp_path))
    assert found.facts["huge pages"] == "madvise"
    assert str(found.facts["huge pages, shared"]).startswith("never")
    assert found.facts["yama ptrace_scope"] == "unknown"
    assert [p.severity for p in found.problems] == ["hint", "hint"]
    assert "128 of 200 ranks" in found.problems[0].text and "262144 bytes" in found.problems[1].text
    assert not checks.kernel(100, str(tmp_path / "empty")).problems


def test_memory_that_is_short(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  2097152 kB\nMemAvailable:  1048576 kB\n")
    plenty = checks.memory(4, str(tmp_path / "meminfo"), str(tmp_path))
    assert (plenty.facts["total"], plenty.facts["available"], plenty.problems) == ("2.0 GiB", "1.0 GiB", ())
    (short,) = checks.memory(100, str(tmp_path / "meminfo"), str(tmp_path)).problems
    assert "1.0 GiB of memory for 100 ranks" in short.text


@pytest.mark.parametrize(
    ("line", "file"),
    [("0::/a/b", "a/memory.max"), ("5:cpu,memory:/a/b", "memory/a/b/memory.limit_in_bytes"), ("0::/x", "memory.max")],
)
def test_the_memory_of_a_cgroup(line: str, file: str, tmp_path: Path) -> None:
    (tmp_path / "membership").write_text(f"1:name=systemd:/\n{line}\n")
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("1073741824\n")
    assert checks._memory_limit(str(tmp_path), str(tmp_path / "membership")) == 1 << 30
    (tmp_path / file).write_text("max\n")
    assert checks._memory_limit(str(tmp_path), str(tmp_path / "membership")) == 0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://:a%40b@host:1/0", "redis://...@host:1/0"),
        ("failed: rediss://user:p@ss@host, again", "failed: rediss://...@host, again"),
        ("file:///dir@home", "file://...@home"),
        ("tcp://host:1", "tcp://host:1"),
    ],
)
def test_passwords_are_left_out(text: str, shown: str) -> None:
    assert without_password(text) == shown
