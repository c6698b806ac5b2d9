"""Imports modules once, and forks a process for each script that a client asks for.

    python server.py LISTENING MODULE ...

Invariant: this process has one thread whenever it forks, so no framework has started its backend. It ends when its
standard input does. A rank is killed when its client ends, or this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import struct
import sys
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

_PR_SET_PDEATHSIG = 1

# What interpreters, their allocators and the frameworks read as they start.
_PREFIXES = (
    *("CUDA_", "GOMP_", "JAX_", "KERAS_", "KMP_", "LD_", "MALLOC_", "MKL_", "NUMEXPR_", "OMP_", "ONEDNN_", "OPENBLAS_"),
    *("PYTHON", "PYTORCH_", "TF_", "TORCH_", "TPU_", "XLA_"),
)


def read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of it that has to be the same in the parent and in the rank."""
    return {name: value for name, value in environment.items() if name.startswith(_PREFIXES)}


def serve(listening: socket.socket, own: Mapping[str, str]) -> str:
    """Returns in the forked processes only: the script that each has to run. `own`: the environment before imports."""
    us = os.getpid()
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(listening, select.POLLIN)
    ranks: dict[int, _Rank] = {}  # by both descriptors
    while True:
        descriptor, _ = poll.poll()[0]  # one at a time: a descriptor that is closed may be another's next
        if descriptor == 0:
            for rank in ranks.values():
                os.kill(rank.process, signal.SIGKILL)
            os._exit(0)
        elif descriptor == listening.fileno():
            client, _ = listening.accept()
            request, streams = _read(client)
            if len(os.listdir("/proc/self/task")) > 1:
                sys.exit(f"warm: threads have been started by the import of {', '.join(sys.argv[2:])}: none may fork")
            if (process := os.fork()) == 0:
                for each in [listening.fileno(), client.detach(), *ranks]:
                    os.close(each)
                return _become(request, streams, own, us)
            for stream in streams:
                os.close(stream)
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
            self.client.sendall(struct.pack("!i", os.waitstatus_to_exitcode(status)))
        os.close(self.handle)


def _read(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    length, streams, _, _ = socket.recv_fds(client, 4, 3)
    text = bytearray()
    (wanted,) = struct.unpack("!I", length)
    while len(text) < wanted:
        text += client.recv(wanted - len(text))
    request: dict[str, Any] = json.loads(text)
    return request, list(streams)


def _become(request: dict[str, Any], streams: list[int], own: Mapping[str, str], parent: int) -> str:
    """Make this process the rank that was asked for."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    arguments, environment = request["arguments"], request["environment"]
    os.setpgid(0, request["group"])
    os.sched_setaffinity(0, request["cores"])
    os.chdir(request["directory"])
    before, asked = read_at_import(own), read_at_import(environment)
    if differing := sorted(name for name in {*before, *asked} if before.get(name) != asked.get(name)):
        sys.exit(f"warm: the rank's {', '.join(differing)} differ from those that the modules were imported with")
    changed = {name: value for name, value in os.environ.items() if own.get(name) != value}  # by the modules
    os.environ.clear()
    os.environ.update(environment | changed)
    _random_again()
    sys.argv[:] = arguments
    sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
    return str(arguments[0])


def _random_again() -> None:
    """New processes have random numbers of their own, where nothing has set a seed."""
    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None and "numpy.random" in sys.modules:
        numpy.random.seed()


if __name__ == "__main__":
    del sys.path[0]  # this folder
    before_imports = dict(os.environ)
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # the memory stays common to parent and ranks
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; whoever started this process ends it
    script = serve(socket.socket(fileno=int(sys.argv[1])), before_imports)
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=script, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    with open(script, encoding="utf-8") as file:
        text = file.read()
    exec(compile(text, script, "exec", dont_inherit=True), main.__dict__)
