"""Virtual environments in the user's cache folder, one for each peer and version of Python.

Invariant: an environment is used only once everything that it needs has been installed; two benchmarks that want the
same one take turns. Nothing is installed into the environment that we ourselves run in.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from bench.peers import Peer, peer

PATIENCE: Final = 1800.0  # seconds for one installation
NUMPY: Final = "numpy>=1.24"
_MARK: Final = ".complete"


class CannotInstall(Exception):
    """A peer's environment could not be made; the message says what to do."""


def cache_folder() -> Path:
    """~/.cache/pycollectives/peers, or where XDG_CACHE_HOME says."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pycollectives" / "peers"


def python_for(name: str, say: Callable[[str], None], show: bool) -> str:
    """The Python under which that peer's workers run; installs it first where it is missing.

    `say` is told, in a line each, what takes long; `show`: let pip draw its progress on the terminal.
    Raises CannotInstall; ValueError for a peer that there is not.
    """
    system = peer(name)
    requirements = (*system.REQUIREMENTS, *system.BARE, NUMPY)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache_folder() / f"{system.ENVIRONMENT}-py{version}"
    python = folder / "bin" / "python"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder, say):
            if not _complete(folder, requirements):
                say(f"installing {' '.join(requirements)} for {name} into {folder}, once")
                _install(folder, python, system, show)
                (folder / _MARK).write_text("\n".join(requirements) + "\n")
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotInstall(f"{name}: cannot make the virtual environment {folder}: {error}") from error
    return str(python)


def _complete(folder: Path, requirements: tuple[str, ...]) -> bool:
    with contextlib.suppress(OSError):
        return (folder / _MARK).read_text().split() == list(requirements) and (folder / "bin" / "python").exists()
    return False


def _install(folder: Path, python: Path, system: Peer, show: bool) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    _pip(python, (*system.REQUIREMENTS, NUMPY), show)
    if system.BARE:
        _pip(python, ("--no-deps", *system.BARE), show)


def _pip(python: Path, arguments: tuple[str, ...], show: bool) -> None:
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    if show:
        code, said = subprocess.run(command, check=False, stdout=sys.stderr, timeout=PATIENCE).returncode, ""
    else:
        done = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE, text=True
        )
        code, said = done.returncode, "\n" + "\n".join(done.stdout.splitlines()[-5:])
    if code:
        raise CannotInstall(f"`{' '.join(command)}` failed with code {code}{said}")


@contextlib.contextmanager
def _alone(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the environment's lock, which the kernel takes back should we die."""
    deadline = time.monotonic() + PATIENCE
    told = False
    with open(folder.with_name(folder.name + ".lock"), "w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CannotInstall(f"another process has held {lock.name} for {PATIENCE:g} s") from None
                if not told:
                    say(f"another process is installing {folder.name}: waiting for it")
                    told = True
                time.sleep(0.2)
        yield
