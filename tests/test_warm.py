"""A process that is forked in place of a started one: what it sees, does and leaves is the same, or it is started."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import eventually
from tests.warm import parents
from tests.warm.parents import OURS, interpreter, python
from tests.warm.server import read_at_import

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(["/nowhere/first", "/nowhere/second"]), "GIVEN": "yes"}

# All that a program can ask of what it was started with. The real Python is asked to open no more files than those.
STATE = """
import os, resource, signal, sys
print(sys.argv, sys.orig_argv[1:], __name__, sys.modules["__main__"].__dict__ is globals())
for path in sys.path: print(path)
for name, value in sorted(os.environ.items()): print(name, value)
for name in dir(resource): name.startswith("RLIMIT_") and print(name, resource.getrlimit(getattr(resource, name)))
print(os.getcwd(), os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0), os.umask(0), os.getuid(), os.getgid())
for number in set(range(1, 65)) - {32, 33}: print(number, signal.getsignal(number))
print(signal.pthread_sigmask(0, []), os.getsid(0) == os.getsid(os.getppid()))
print([name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")])
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.encoding, stream.errors, stream.line_buffering, stream.write_through, stream.isatty(), stream.fileno())
print(sys.stdin.read(), sys.gettrace(), sys.getswitchinterval(), sys.getrecursionlimit())
"""
HELD = """
class Held:
    def __del__(self): print("released")
"""
SPINNING = "import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()\nprint('ends')"
ENDS = {
    "nothing": "print('said')",
    "a number": "import sys; sys.exit(7)",
    "a large number": "import sys; sys.exit(263)",
    "a text": "import sys; sys.exit('the reason')",
    "an error": "def broken():\n    raise ValueError('its cause')\nbroken()",
    "an error of syntax": "print(",
    "an interrupt": "raise KeyboardInterrupt",
    "at once": "import os; print('lost', end=''); os._exit(9)",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM); signal.pause()",
    "aborted": "import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.abort()",
    "callbacks": "import atexit; atexit.register(print, 'last'); atexit.register(print, 'first'); print('begun')",
    "threads": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('waited'))).start()",
    "daemons": SPINNING,
    "objects": f"{HELD}\nheld = Held()\ncycle = [Held()]\ncycle.append(cycle)",
    "objects in an error": f"{HELD}\ndef broken():\n    held = Held()\n    1 / 0\nbroken()",
    "nobody reads": "import os, sys; os.close(1); print('lost')",
    "a process": "import subprocess, sys\nprint(subprocess.check_output([sys.executable, '-c', 'print(5)']))",
    "a pool": "import multiprocessing as m\nprint(m.get_context('fork').Pool(1).map(abs, [-3]))",
}


def both(*arguments: str, **options: Any) -> Sequence[subprocess.CompletedProcess[str]]:
    """What became of `python *arguments`, started and forked."""
    settings = {"env": ENVIRONMENT, "text": True, "capture_output": True, "timeout": 60, **options}
    environment = settings["env"]
    done = [
        subprocess.run([each, *arguments], check=False, **settings) for each in (sys.executable, python(environment))
    ]
    for each in done:
        each.args = []
    return done


def same(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    started, forked = both(*arguments, **options)
    assert [forked.returncode, *forked.stdout.splitlines()] == [started.returncode, *started.stdout.splitlines()]
    assert (forked.stdout, forked.stderr) == (started.stdout, started.stderr)
    return forked


def is_forked(done: subprocess.CompletedProcess[str]) -> bool:
    """Of a program that prints `sys.executable`."""
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() != sys.executable


SHOW = ("-c", "import sys; print(sys.executable)")


@pytest.mark.parametrize("options", [[], ["-u"], ["-I"], ["-I", "-u"]], ids=str)
def test_what_a_program_was_started_with(options: list[str], tmp_path: Path) -> None:
    (tmp_path / "state.py").write_text(STATE)
    paths = {**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}:relative"}
    commands = (["-c", STATE, "one", "-c"], [str(tmp_path / "state.py"), "-x", ""], ["state.py"], ["-m", "state", "-m"])
    for command in commands if "-I" not in options else commands[:-1]:
        found = same(*options, *command, env=paths, cwd=tmp_path, input="typed\n")
        assert found.returncode == 0 and "GIVEN yes" in found.stdout, found.stderr


@pytest.mark.parametrize("new_session", [False, True])
def test_what_the_kernel_knows_of_it(tmp_path: Path, new_session: bool) -> None:
    """Limits, cores, priority, mask, signals and files are those of the process that was started."""

    def before() -> None:
        os.nice(3)
        os.umask(0o027)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        resource.setrlimit(resource.RLIMIT_NOFILE, (321, 654))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})

    read, write = os.pipe()
    try:
        options = {"preexec_fn": before, "pass_fds": [read, write], "start_new_session": new_session}
        found = same("-c", STATE, cwd=tmp_path, stdin=subprocess.DEVNULL, **options)
        assert "(321, 654)" in found.stdout and f"'{write}'" in found.stdout
        same("-c", f"import os; print(os.write({write}, b'x'), os.read({read}, 1))", **options)
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("program", ENDS.values(), ids=ENDS)
def test_how_a_program_ends(program: str) -> None:
    same("-c", program)


def test_a_script_that_fails_says_where(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("def broken():\n    raise ValueError('its cause')\n\nbroken()\n")
    assert "line 4, in <module>" in same(str(script)).stderr
    same("-m", "script", env={**ENVIRONMENT, "PYTHONPATH": str(tmp_path)})
    for done in both("-m", "nowhere"):
        assert done.returncode == 1 and done.stderr.endswith(": No module named nowhere\n")


def test_random_numbers_are_its_own() -> None:
    code = "import os, random, numpy; print(random.random(), numpy.random.random(), os.getpid())"
    first, second = (both("-c", code)[1].stdout.split() for _ in range(2))
    assert len(first) == len(second) == 3 and not set(first) & set(second)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
@pytest.mark.parametrize("whole_group", [False, True])
def test_a_signal_reaches_it_once(number: signal.Signals, whole_group: bool) -> None:
    code = f"""
import signal, time
got = []
signal.signal({int(number)}, lambda *_: got.append(1))
print("ready", flush=True)
until = time.monotonic() + 10
while not got and time.monotonic() < until:
    time.sleep(0.01)
time.sleep(0.1)
print(len(got))
"""
    process = subprocess.Popen([python(), "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=whole_group)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    os.killpg(process.pid, number) if whole_group else process.send_signal(number)
    assert process.communicate(timeout=60)[0] == "1\n" and process.returncode == 0


def test_it_ends_with_the_process_that_stands_for_it() -> None:
    process = subprocess.Popen(
        [python(), "-c", "import os, signal; print(os.getpid(), flush=True); signal.pause()"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    forked = int(process.stdout.readline())
    assert forked != process.pid and Path(f"/proc/{forked}").exists()
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert eventually(lambda: not Path(f"/proc/{forked}").exists())


def test_what_it_starts_by_the_same_name_is_forked_too() -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, *{SHOW!r}])"
    assert is_forked(both("-c", code)[1])


@pytest.mark.parametrize("options", [["-S"], ["-W", "error"], ["-X", "dev"], ["-B"]], ids=str)
def test_python_is_started_for_what_a_forked_process_cannot_be(options: list[str]) -> None:
    assert not is_forked(both(*options, *SHOW)[1])


def test_python_is_started_where_imports_would_have_read_something_else() -> None:
    for name in ("OPENBLAS_NUM_THREADS", "PYTHONOPTIMIZE", "LD_LIBRARY_PATH"):
        forked, other = (
            subprocess.run([python(ENVIRONMENT), *SHOW], env=env, capture_output=True, text=True, check=True)
            for env in (ENVIRONMENT, {**ENVIRONMENT, name: "1"})
        )
        assert is_forked(forked) and not is_forked(other)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a namespace")
def test_namespaces_are_those_of_what_stands_for_it(tmp_path: Path) -> None:
    look = "import os, sys; print(*(os.readlink(f'/proc/self/ns/{n}') for n in ('ipc', 'mnt', 'net', 'uts')))"
    script = f"mount -t tmpfs none {tmp_path} && touch {tmp_path}/inside && readlink /proc/$$/ns/ipc /proc/$$/ns/mnt "
    script += f'/proc/$$/ns/net /proc/$$/ns/uts && exec "$@" {tmp_path}'
    code = f"{look}; print(os.listdir(sys.argv[1]))"
    inside = ["unshare", "--ipc", "--mount", "--net", "--uts", "sh", "-c", script, "sh", python(), "-c", code]
    found = subprocess.run(inside, capture_output=True, text=True, check=True).stdout.splitlines()
    assert found[4:] == [" ".join(found[:4]), "['inside']"]
    assert set(found[:4]).isdisjoint(os.readlink(f"/proc/self/ns/{name}") for name in ("ipc", "mnt", "net", "uts"))
    other = ["unshare", "--pid", "--fork", python(), *SHOW]
    assert not is_forked(subprocess.run(other, capture_output=True, text=True, check=True))


def test_a_parent_that_has_ended_is_replaced() -> None:
    modules = ("json",)
    before = interpreter(modules, ENVIRONMENT)
    (ended,) = [each for each in parents._parents.values() if str(each.program) == before]
    ended._process.kill()
    ended._process.wait()
    after = interpreter(modules, ENVIRONMENT)
    assert after != before and not Path(before).exists()
    assert is_forked(subprocess.run([after, *SHOW], env=ENVIRONMENT, capture_output=True, text=True, check=True))


def test_what_the_imports_have_set_is_inherited(tmp_path: Path) -> None:
    (tmp_path / "setting.py").write_text("import os; os.environ['TORCH_SET'] = 'by import'")
    environment = {**ENVIRONMENT, "PYTHONPATH": str(tmp_path)}
    code = f"import os, subprocess, sys; assert os.environ['TORCH_SET']; subprocess.run([sys.executable, *{SHOW!r}])"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        command = [interpreter(("setting",), environment), "-c", code]
    assert is_forked(subprocess.run(command, env=environment, capture_output=True, text=True, check=True))


def test_frameworks_count_their_threads() -> None:
    """What OMP_NUM_THREADS is for has to be the same; NumPy's linear algebra has one thread in any case."""
    modules = ("json", "sklearn.nothing")
    one, two = ({**ENVIRONMENT, "OMP_NUM_THREADS": number} for number in "12")
    assert python(one) == python(two)
    assert read_at_import(one, modules) != read_at_import(two, modules)


def test_no_import_of_ours_reads_a_variable_of_the_library() -> None:
    """So a process may import them before it knows its environment."""
    code = f"""
import importlib, os
class Watched(dict):
    def __getitem__(self, key): read.append(os.fsdecode(key)); return super().__getitem__(key)
read = []
os.environ._data = Watched(os.environ._data)
for name in {OURS!r}: importlib.import_module(name)
print([name for name in read if name.startswith("COLLECTIVES_")], len(read) > 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[] True\n"
