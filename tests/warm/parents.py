"""Processes that are forked from one that has imported what they need, instead of importing it once more.

`interpreter(modules, environment)` is a program to start in place of Python, with any arguments (`client.cpp`): a
process that has imported the modules forks one that runs them (`server.py`), which becomes like one that was started
(`forked.py`). Where it could not be, the program becomes Python: with other options than -c, -m, -I and -u, in another
namespace of processes, or with variables that Python, NumPy or a framework read as they are imported and that differ.

Invariant: tests cannot tell a forked process from a started one, but for these: it is not the process that they started
but one that ends with it, with the same exit code or by the same signal, and gets its signals, SIGSTOP excepted. Forked
processes have one hash seed, and all their libraries at the same addresses. At their end, modules are not taken apart.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tests.leftovers import marked
from tests.warm.server import counts_threads, read_at_import

# What ranks and commands of this library import. None of it reads a variable of the library's as it is imported.
OURS: Final = (
    *("numpy", "click", "rich.console", "rich.progress"),
    *(f"collectives.{name}" for name in ("algorithms", "core.init", "rendezvous", "transports", "bench.rank")),
    *(f"collectives.commands.{name}" for name in ("main", "run", "doctor", "explain", "simulate")),
    *(f"collectives.bench.commands.{name}" for name in ("bench", "calibrate")),
)
# What ranks of tests import, with what the framework itself imports on first use. JAX, TensorFlow and PyTorch start
# threads later only. Examples read their data from scikit-learn, which takes as long to import as a framework.
SKLEARN: Final = ("numpy", "sklearn.datasets")
JAX: Final = ("jax", "jax.numpy", *SKLEARN)
KERAS: Final = ("keras",)
TENSORFLOW: Final = ("tensorflow", "keras", *SKLEARN)
TORCH: Final = ("torch", "torch._dynamo", "torch.distributed.fsdp", "torch.nn.parallel", *SKLEARN)

# For JAX in XLA_FLAGS: the operations are what they are, but are compiled in half the time.
QUICK_XLA: Final = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

LIMIT: Final = 4  # parents at a time: one that has imported TensorFlow takes 700 MB
_HERE: Final = Path(__file__).parent
_BUILT: Final = _HERE.parents[1] / "build" / "warm"  # where the next run finds what this one has compiled


@functools.cache
def _client() -> Path | None:
    """The program that stands in for Python, compiled; None without a compiler."""
    compiler = (os.environ.get("CXX") or "c++").split()
    if shutil.which(compiler[0]) is None:
        return None
    source = _HERE / "client.cpp"
    command = [*compiler, "-std=c++20", "-O1", f'-DWARM_PYTHON="{sys.executable}"', str(source)]
    version = hashlib.sha256(b"\0".join([source.read_bytes(), *map(os.fsencode, command)])).hexdigest()[:16]
    path = _BUILT / version / "python"
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(dir=path.parent)
    except OSError:  # a checkout that cannot be written
        folder = tempfile.mkdtemp(prefix="warm-")
        path = Path(folder, "kept")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = Path(folder, "python")
    subprocess.run([*command, "-o", str(made)], check=True)
    return made.replace(path)  # other processes may do the same now


class _Parent:
    """A process that has imported `modules` in `environment`; jobs may connect while it still does."""

    def __init__(self, client: Path, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="warm-")
        self.program = Path(self._folder.name, "python")
        shutil.copy(client, self.program)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(str(self.program.with_name("socket")))
            listening.listen(64)
            paths = environment.get("PYTHONPATH", "")
            arguments = [str(listening.fileno()), str(self.program), paths, *modules]
            own = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm.server", *arguments],
                env=own if counts_threads(modules) else {**own, "OMP_NUM_THREADS": "1"},
                cwd=_HERE.parents[1],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[listening.fileno()],
            )
        marked().keep(self._process.pid)

    def ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        """End it, and what it has forked."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


_parents: Final[dict[object, _Parent]] = {}  # the one used last is the last


def interpreter(modules: Sequence[str], environment: Mapping[str, str]) -> str:
    """The path of the program to start in place of Python, for processes that get this environment.

    Modules of packages that are not installed are left out. Where there is no compiler, it is Python's path.
    """
    if (client := _client()) is None:
        return sys.executable
    modules = tuple(module for module in modules if find_spec(module.partition(".")[0]) is not None)
    chosen = {name: value for name, value in environment.items() if not name.startswith("COLLECTIVES_")}
    key = (modules, frozenset(read_at_import(chosen, modules).items()))
    found = _parents.pop(key, None)
    if found is not None and found.ended():
        found.close()
        found = None
    while found is None and len(_parents) >= LIMIT:
        _parents.pop(next(iter(_parents))).close()
    _parents[key] = found = found or _Parent(client, modules, chosen)
    return str(found.program)


def python(environment: Mapping[str, str] | None = None) -> str:
    """The same for `OURS`; the environment is that of this process where none is given."""
    return interpreter(OURS, os.environ if environment is None else environment)


@atexit.register
def close() -> None:
    """End all parents of this process."""
    while _parents:
        with contextlib.suppress(BrokenPipeError):
            _parents.popitem()[1].close()


if __name__ == "__main__":  # where it takes long, as in an emulated processor, it can be compiled before
    _client()
