"""Shared memory between processes of one machine; peers pass its descriptors over an abstract unix socket.

Invariant: nothing is created in any file system (also not in /dev/shm), so a killed process leaves nothing behind. If a
rank's resource limits are too low for the group's shared memory, the rank publishes no address for this transport, and
its peers use another one.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import socket
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from collectives.native import _engine
from collectives.native.errors import TransportUnavailable
from collectives.transports import abstract
from collectives.transports.transport import Listener, Place, Scope, left_out

if TYPE_CHECKING:
    from collectives.native._engine import Group


_BACKLOG = 4096  # the kernel cuts it to net.core.somaxconn
_BOUNDED = "bounded"  # a rank whose address space is limited publishes this with the name of its socket


class ShmTransport:
    """Connects ranks by shared memory, if they are in the same network namespace of the same machine.

    The ranks must be in one namespace because they find each other by abstract Unix sockets. Other namespaces do not
    see these sockets.
    """

    @property
    def scheme(self) -> str:
        return "shm"

    def available(self) -> str | None:
        reason = left_out("shm")
        if reason:
            return reason
        try:
            _pass_memory_around()
        except OSError as error:
            return f"shared memory does not work here: {error}"
        return None

    def listen(self, scope: Scope) -> Listener:
        reason = self.available() or _engine.why_no_room("shm", scope.ranks, scope.segment)
        if reason:
            raise TransportUnavailable(reason)
        return _ShmListener(scope)

    def reaches(self, mine: Place, theirs: Place) -> str | None:
        if not mine.addresses or not theirs.addresses:
            silent = theirs if mine.addresses else mine
            return f"{silent} does not offer shared memory"
        if not mine.identity.same_machine(theirs.identity):
            return f"{mine} and {theirs} are on different machines"
        if not mine.identity.same_network(theirs.identity):
            return f"{mine} and {theirs} are in different network namespaces of one machine"
        if not theirs.ended and not abstract.is_bound(_name(theirs)):
            # Virtual machines cloned from one snapshot have the same boot id and no other property that differs.
            return f"the socket of {theirs} is not on this machine, although its boot id says so"
        return None

    def route(self, group: Group, mine: Place, theirs: Place, scope: Scope, timeout: float) -> None:
        group.route(theirs.rank, self.scheme, [_name(theirs)], theirs.identity.host)


class _ShmListener:
    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._name = abstract.name()
        self._attached = False
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
        bounded = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
        return (self._name, _BOUNDED) if bounded else (self._name,)

    def attach(self, group: Group) -> None:
        if self._socket is None and not self._attached:
            raise ValueError("this listener was closed before")
        if self._attached:
            group.accept("shm")
        self._attached = True
        if self._socket is not None:
            group.listen("shm", self._socket.detach())
            self._socket = None

    def split(self) -> Listener:
        reason = _engine.why_no_room("shm", self._scope.ranks, self._scope.segment)
        if reason:
            raise TransportUnavailable(reason)
        return self

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def have_heaps(addresses: Iterable[Sequence[str]]) -> bool:
    """Return whether ranks can map the arrays that other ranks have allocated by `comm.empty`.

    `addresses` has, for each rank, the texts that it published. The memory of such arrays reserves as much address
    space as the machine has RAM. So the result is True only if no rank has a limit on its address space (`ulimit -v`).
    """
    return not any(_BOUNDED in texts for texts in addresses)


def _name(place: Place) -> str:
    """The name of a rank's socket. Raises ValueError for addresses that no rank of this library publishes."""
    name, *more = place.addresses
    if more not in ([], [_BOUNDED]):
        raise ValueError(f"not what a rank publishes beside the name of its socket: {more[0][:100]!r}")
    abstract.check(name)
    return name


def _pass_memory_around() -> None:
    """Try what connections need: make memory, pass its descriptor over a socket, map it twice, check one write."""
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
