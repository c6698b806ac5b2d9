"""Imports modules once, and forks a process for each client, which was started in place of Python.

    python -m tests.warm.server LISTENING PROGRAM PATHS MODULE ...

PROGRAM is the client, PATHS are those of PYTHONPATH, which is not set here.

Invariant: this process has one thread whenever it forks, so no framework has started its backend. It ends when its
standard input does. A forked process is killed when its client ends, or this process.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

MOST_FILES = 200  # as in client.cpp

# What interpreters, their allocators and the frameworks read as they start.
_PREFIXES = (
    *("CUDA_", "GOMP_", "JAX_", "KERAS_", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "NUMEXPR_", "OMP_"),
    *("ONEDNN_", "OPENBLAS_", "PYTHON", "PYTORCH_", "TF_", "TORCH_", "TPU_", "XLA_"),
)
_HEEDED = ("PYTHONPATH", "PYTHONUNBUFFERED")  # by forked processes, too
_LATER = ("TORCH_NCCL_",)
_WITH_THREADS = {"jax", "keras", "sklearn", "tensorflow", "torch"}
SPACES = ("ipc", "mnt", "net", "uts")  # namespaces that a forked process can join, if it may


def counts_threads(modules: Sequence[str]) -> bool:
    """Whether OMP_NUM_THREADS matters. NumPy alone has one thread in all parents: others could not fork."""
    return not _WITH_THREADS.isdisjoint(module.partition(".")[0] for module in modules)


def read_at_import(environment: Mapping[str, str], modules: Sequence[str]) -> dict[str, str]:
    """The part of it that has to be the same in the parent, which imports `modules`, and in the forked process."""
    heeded = _HEEDED if counts_threads(modules) else (*_HEEDED, "OMP_NUM_THREADS")
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_PREFIXES) and name not in heeded and not name.startswith(_LATER)
    }


def serve(listening: socket.socket, modules: Sequence[str], own: Mapping[str, str]) -> Started:
    """Returns in the forked processes only: what each has to run. `own`: the environment before imports."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(listening, select.POLLIN)
    ranks: dict[int, _Rank] = {}  # by both descriptors
    us = os.getpid()
    while True:
        descriptor, _ = poll.poll()[0]  # one at a time: a descriptor that is closed may be another's next
        if descriptor == 0:
            for rank in ranks.values():
                os.kill(rank.process, signal.SIGKILL)
            os._exit(0)
        elif descriptor == listening.fileno():
            client, _ = listening.accept()
            blocked, files = _received(client)
            asked = _asked(client, blocked, files, read_at_import(own, modules), modules)
            if asked is None:
                with client, contextlib.suppress(OSError):
                    client.sendall(struct.pack("=i", 0))
                _close(files.values())
                continue
            if len(os.listdir("/proc/self/task")) > 1:
                sys.exit(f"warm: threads have been started by the import of {', '.join(modules)}: none may fork")
            if (process := os.fork()) == 0:
                _close([listening.fileno(), client.detach(), *ranks])
                return asked._replace(parent=us)
            _close(files.values())
            with contextlib.suppress(OSError):  # its end is seen below
                client.sendall(struct.pack("=i", process))
            rank = _Rank(client, process, os.pidfd_open(process))
            for each in rank.descriptors:
                poll.register(each, select.POLLIN)
                ranks[each] = rank
        else:
            rank = ranks[descriptor]
            for each in rank.descriptors:
                poll.unregister(each)
                del ranks[each]
            rank.end()


class Started(NamedTuple):
    """A client, and what it was started with."""

    client: int  # process
    parent: int  # the server's process
    command: list[str]
    environment: dict[str, str]
    umask: int
    ignored: int  # signals, a bit each
    blocked: int
    files: dict[int, int]  # by their numbers in the client, those here


class _Rank(NamedTuple):
    client: socket.socket
    process: int
    handle: int

    @property
    def descriptors(self) -> tuple[int, int]:
        """Those that become readable when the client is gone, and when the process has ended."""
        return self.client.fileno(), self.handle

    def end(self) -> None:
        """One of both has ended: end the other."""
        os.kill(self.process, signal.SIGKILL)
        _, status = os.waitpid(self.process, 0)
        with self.client, contextlib.suppress(OSError):
            self.client.sendall(struct.pack("=i", os.waitstatus_to_exitcode(status)))
        os.close(self.handle)


def _received(client: socket.socket) -> tuple[int, dict[int, int]]:
    """The signals that are blocked there, and its files; nothing if it is gone."""
    layout = struct.Struct(f"=Q{MOST_FILES}i")
    content, here, _, _ = socket.recv_fds(client, layout.size, MOST_FILES, socket.MSG_WAITALL)
    blocked, *there = layout.unpack(content.ljust(layout.size, b"\0"))
    return blocked, dict(zip(there, here, strict=False))


def _asked(
    client: socket.socket, blocked: int, files: dict[int, int], own: Mapping[str, str], modules: Sequence[str]
) -> Started | None:
    """What the client was started with; None if a forked process would not be what it asks for."""
    process, _, _ = struct.unpack("=3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        command, environment = (_texts(process, name) for name in ("cmdline", "environ"))
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
        elsewhere = _place(process) != _place(os.getpid())
    except OSError:
        return None  # it is gone
    variables = _variables(environment)
    now, wanted = (read_at_import(each, modules) for each in (os.environ, variables))
    # What this process starts, or has forked, inherits variables that the modules have set.
    fitting = all(wanted.get(name) in (own.get(name), now.get(name)) for name in {*own, *wanted})
    if elsewhere or not fitting or not understood(command):
        return None
    umask, ignored = int(status["Umask"], 8), int(status["SigIgn"], 16)
    return Started(process, 0, command, variables, umask, ignored, blocked, files)


def understood(command: list[str]) -> bool:
    """Whether it is one of `python [-I] [-u] -c CODE ...`, `-m MODULE ...` and `SCRIPT ...`."""
    _, chosen = options(command)
    return len(chosen) > 1 if chosen[:1] in (["-c"], ["-m"]) else bool(chosen) and not chosen[0].startswith("-")


def options(command: list[str]) -> tuple[list[str], list[str]]:
    """Of Python's command line: options that are heeded, and the rest."""
    first = next((at for at in range(1, len(command)) if command[at] not in ("-I", "-u")), len(command))
    return command[1:first], command[first:]


def _variables(environment: Iterable[str]) -> dict[str, str]:
    return {text.partition("=")[0]: text.partition("=")[2] for text in environment}


def _place(process: int) -> list[str]:
    """The namespaces that a forked process has to share with it, and whether its addresses are random."""
    names = ("pid", "user", *(() if os.geteuid() == 0 else SPACES))
    spaces = [os.readlink(f"/proc/{process}/ns/{name}") for name in names]
    return [*spaces, Path(f"/proc/{process}/personality").read_text()]


def _texts(process: int, name: str) -> list[str]:
    return [os.fsdecode(each) for each in Path(f"/proc/{process}/{name}").read_bytes().split(b"\0")[:-1]]


def _close(descriptors: Iterable[int]) -> None:
    for each in descriptors:
        os.close(each)


def main(listening: int, program: str, paths: str, modules: Sequence[str]) -> NoReturn:
    from tests.warm.forked import become, finish

    own = _variables(_texts(os.getpid(), "environ"))  # without what Python has set
    places = sys.path[1:]  # without the working directory
    sys.path[:] = [*filter(None, paths.split(os.pathsep)), *places]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]  # a program may have others
    for module in modules:
        importlib.import_module(module)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; whoever started this process ends it
    gc.collect()
    gc.freeze()  # the memory stays common to parent and ranks
    started = serve(socket.socket(fileno=listening), modules, own)
    sys.executable, sys.path[:] = program, places
    finish(become(started, own))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
