"""Shared memory between processes of one machine; peers meet at an abstract unix socket and pass descriptors.

Invariant: nothing is created in any file system, so a killed process leaves nothing behind.
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from native.errors import TransportUnavailable
from transports import abstract
from transports.transport import Listener, Place, Scope

if TYPE_CHECKING:
    from native._engine import Group


_BACKLOG = 4096  # the kernel cuts it to net.core.somaxconn


class ShmTransport:
    """Ranks that share a machine and a network namespace (abstract sockets live in one)."""

    @property
    def scheme(self) -> str:
        return "shm"

    def available(self) -> str | None:
        try:
            _pass_memory_around()
        except OSError as error:
            return f"shared memory does not work here: {error}"
        return None

    def listen(self, scope: Scope) -> Listener:
        reason = self.available()
        if reason:
            raise TransportUnavailable(reason)
        return _ShmListener()

    def reaches(self, mine: Place, theirs: Place) -> str | None:
        if not mine.addresses or not theirs.addresses:
            silent = theirs if mine.addresses else mine
            return f"{silent} does not offer shared memory"
        if not mine.identity.same_machine(theirs.identity):
            return f"{mine} and {theirs} are on different machines"
        if not mine.identity.same_network(theirs.identity):
            return f"{mine} and {theirs} are in different network namespaces of one machine"
        if not all(abstract.is_bound(name) for name in theirs.addresses):
            # Machines cloned from one snapshot share the boot id and everything else we could compare.
            return f"the socket of {theirs} is not on this machine, although its boot id says so"
        return None

    def route(self, group: Group, mine: Place, theirs: Place, scope: Scope, timeout: float) -> None:
        for name in theirs.addresses:
            abstract.check(name)
        group.route(theirs.rank, self.scheme, list(theirs.addresses), theirs.identity.host)


class _ShmListener:
    def __init__(self) -> None:
        self._name = abstract.name()
        self._socket: socket.socket | None = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        )
        try:
            self._socket.bind("\0" + self._name)
            self._socket.listen(_BACKLOG)
        except OSError:
            self.close()
            raise

    @property
    def addresses(self) -> Sequence[str]:
        return (self._name,)

    def attach(self, group: Group) -> None:
        if self._socket is None:
            raise ValueError("this listener was closed or attached before")
        group.listen("shm", self._socket.detach())
        self._socket = None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _pass_memory_around() -> None:
    """What links do, in small: make memory, hand its descriptor over a socket, map it twice, see one write."""
    memory = os.memfd_create("pycollectives-probe", os.MFD_CLOEXEC)
    try:
        os.ftruncate(memory, mmap.PAGESIZE)
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with left, right:
            left.setblocking(False)
            right.setblocking(False)
            socket.send_fds(left, [b"x"], [memory])
            _, descriptors, _, _ = socket.recv_fds(right, 1, 1)
        if len(descriptors) != 1:
            raise OSError(errno.EPROTO, "a descriptor sent over a unix socket did not arrive")
        try:
            with mmap.mmap(memory, mmap.PAGESIZE) as here, mmap.mmap(descriptors[0], mmap.PAGESIZE) as there:
                here[:5] = b"hello"
                if there[:5] != b"hello":
                    raise OSError(errno.EPROTO, "two mappings of one memory differ")
        finally:
            os.close(descriptors[0])
    finally:
        os.close(memory)
