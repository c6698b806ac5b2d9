"""Ranks that are forked from a process that has imported their framework, instead of importing it once more.

`interpreter(modules, environment)` gives the command that replaces `python` in the command line of a rank: the launcher
starts `client.py`, and `server.py` forks the rank. `executable` is for programs that start `python -I -c CODE`.

Invariant: a rank sees what a new process would see: its own arguments, environment, directory, streams and cores, a
fresh `__main__`, and a `collectives` that it imports itself. What a framework reads as it is imported is the same in
the parent, or the rank ends with an error. Two things differ: all ranks have one hash seed, and the
process that the launcher waits for is not the rank itself, but ends with the rank's exit code or signal.
"""

from __future__ import annotations

import atexit
import contextlib
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tests.leftovers import marked
from tests.warm.server import read_at_import

# What ranks of tests import, with what the framework itself imports on first use. JAX, TensorFlow and PyTorch start
# threads later only. Examples read their data from scikit-learn, which takes as long to import as a framework.
SKLEARN: Final = ("numpy", "sklearn.datasets")
JAX: Final = ("jax", "jax.numpy", *SKLEARN)
KERAS: Final = ("keras",)
TENSORFLOW: Final = ("tensorflow", "keras", *SKLEARN)
TORCH: Final = ("torch", "torch._dynamo", "torch.distributed.fsdp", "torch.nn.parallel", *SKLEARN)

# For JAX in XLA_FLAGS: the operations are what they are, but are compiled in half the time.
QUICK_XLA: Final = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

LIMIT: Final = 3  # parents at a time: one that has imported TensorFlow takes 700 MB
_HERE: Final = Path(__file__).parent


class _Parent:
    """A process that has imported `modules` in `environment`; jobs may connect while it still does."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="warm-")
        path = Path(self._folder.name, "socket")
        self.command = [sys.executable, "-I", "-S", str(_HERE / "client.py"), str(path)]
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(str(path))
            listening.listen(64)
            self._process = subprocess.Popen(
                [sys.executable, str(_HERE / "server.py"), str(listening.fileno()), *modules],
                env=environment,
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


def interpreter(modules: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The command to start a script with, for ranks that get this environment; OSError if there is none any more.

    Modules of packages that are not installed are left out.
    """
    modules = tuple(module for module in modules if find_spec(module.partition(".")[0]) is not None)
    chosen = {name: value for name, value in environment.items() if not name.startswith("COLLECTIVES_")}
    key = (modules, frozenset(read_at_import(chosen).items()))
    found = _parents.pop(key, None)
    if found is not None and found.ended():
        found.close()
        found = None
    while found is None and len(_parents) >= LIMIT:
        _parents.pop(next(iter(_parents))).close()
    _parents[key] = found = found or _Parent(modules, chosen)
    return found.command


def executable(folder: Path, modules: Sequence[str], environment: Mapping[str, str]) -> Path:
    """A program to start in place of `python -I -c CODE`; it is written to `folder`."""
    path = folder / "python"
    command = shlex.join([*interpreter(modules, environment), str(_HERE / "given_code.py")])
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o700)
    return path


@atexit.register
def close() -> None:
    """End all parents of this process."""
    while _parents:
        with contextlib.suppress(BrokenPipeError):
            _parents.popitem()[1].close()
