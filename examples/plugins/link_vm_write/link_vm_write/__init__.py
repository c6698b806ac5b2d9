"""The Python half of the transport "vm-write": whether two ranks can meet, and where.

Invariant: whether the kernel lets one process write to another's memory is found by trying, never by guessing from its
settings; these only explain the answer.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from collectives.native.errors import TransportUnavailable
from collectives.native.plugins import load
from collectives.transports import abstract
from collectives.transports.transport import Listener, Place, Scope

if TYPE_CHECKING:
    from collectives.native._engine import Group

_OBJECT = Path(__file__).parent / "_link.so"


class VmWriteTransport:
    """Processes of one machine, network namespace, PID namespace and user."""

    @property
    def scheme(self) -> str:
        return "vm-write"

    def available(self) -> str | None:
        try:
            reason = _probe(*_beacon())
        except TransportUnavailable as error:
            return str(error)
        return None if reason is None else f"this process cannot even read its own memory by a system call: {reason}"

    def listen(self, scope: Scope) -> Listener:
        reason = self.available()
        if reason:
            raise TransportUnavailable(reason)
        return _VmWriteListener()

    def reaches(self, mine: Place, theirs: Place) -> str | None:
        for place in (mine, theirs):
            if not place.addresses:
                return f"{place} does not offer vm-write"
        if not mine.identity.same_network(theirs.identity):
            return f"{mine} and {theirs} are on different machines, or in different network namespaces of one"
        name, beacon = _parts(theirs)
        if not abstract.is_bound(name):
            return f"the socket of {theirs} is not on this machine, although its boot id says so"
        reason = _probe(*beacon)
        return None if reason is None else f"the memory of {theirs} (process {beacon[0]}) cannot be reached: {reason}"

    def route(self, group: Group, mine: Place, theirs: Place, scope: Scope, timeout: float) -> None:
        group.route(theirs.rank, self.scheme, [_parts(theirs)[0]], theirs.identity.host)


class _VmWriteListener:
    def __init__(self) -> None:
        self._beacon = _beacon()
        self._name, self._socket = abstract.bound()
        self._attached = False
        if self._socket is None:
            raise TransportUnavailable("there are no abstract unix sockets here")
        self._socket.listen(socket.SOMAXCONN)
        self._socket.setblocking(False)

    @property
    def addresses(self) -> Sequence[str]:
        return (self._name, "-".join(f"{number:x}" for number in self._beacon))

    def attach(self, group: Group) -> None:
        if self._attached:
            return group.accept("vm-write")
        if self._socket is None:
            raise ValueError("this listener was closed before")
        self._attached = True
        group.listen("vm-write", self._socket.detach())
        self._socket = None
        return None

    def split(self) -> Listener:
        return self

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def payload_written() -> int:
    """Bytes of messages that this process has written into the memory of others."""
    return int(_library().vm_write_payload())


def _library() -> ctypes.CDLL:
    """The C++ half. Raises TransportUnavailable."""
    library = load(_OBJECT, "vm-write")
    library.vm_write_payload.restype = ctypes.c_uint64
    library.vm_write_probe.argtypes = [ctypes.c_int, *[ctypes.c_uint64] * 3]
    return library


def _beacon() -> tuple[int, int, int, int]:
    """16 random bytes in this process's memory: its number, their address, and what they are, in two halves."""
    numbers = [ctypes.c_uint64() for _ in range(3)]
    _library().vm_write_beacon(*map(ctypes.byref, numbers))
    return (os.getpid(), *(number.value for number in numbers))  # type: ignore[return-value]


def _probe(pid: int, address: int, first: int, second: int) -> str | None:
    """Why that process's beacon cannot be seen; None where it can."""
    code = _library().vm_write_probe(pid, address, first, second)
    match code:
        case 0:
            return None
        case errno.ESRCH:
            return "there is no such process here: it has ended, or is in another PID namespace"
        case errno.EXDEV | errno.EFAULT:
            return "that number is another process's here: they are in different PID namespaces"
        case errno.EPERM:
            return f"the kernel does not permit it ({_setting()}), or it is another user's"
        case _:
            return os.strerror(code)


def _setting() -> str:
    try:
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        return "a container may forbid process_vm_readv"
    return f"kernel.yama.ptrace_scope is {scope}"


def _parts(place: Place) -> tuple[str, tuple[int, int, int, int]]:
    """Raises ValueError for what no rank publishes."""
    name, *more = place.addresses
    abstract.check(name)
    numbers = [int(text, 16) for text in more[0].split("-")] if len(more) == 1 else []
    if len(numbers) != 4 or not 0 < numbers[0] < 1 << 31 or not all(0 <= n < 1 << 64 for n in numbers):
        raise ValueError(f"not what a rank says beside the name of its socket: {more!r:.100}")
    return name, (numbers[0], numbers[1], numbers[2], numbers[3])
