"""Names of abstract unix sockets, and whether one is bound in this network namespace.

Invariant: an abstract name belongs to one network namespace of one kernel, and is free again when its socket is closed.
In one namespace only one socket can have the name; another namespace may use the same name for another socket.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from typing import Final

PREFIX: Final = "pycollectives-"
_LENGTH: Final = len(PREFIX) + 32
_IN_THE_LIST: Final = re.compile(rb"@(" + PREFIX.encode() + rb"[0-9a-f]{32})$", re.MULTILINE)


class _Sockets:
    """The names of ranks in the kernel's list of all sockets, as it was read last; all threads share the object."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._read = 0.0  # when
        self._names: frozenset[str] = frozenset()

    def has(self, text: str, since: float) -> bool:
        """Whether the list has `text`. If not, the list is read again, unless it was read at `since` or later."""
        if text in self._names:
            return True
        with self._lock:
            if self._read < since:
                now = time.monotonic()
                found: list[bytes] = []
                with contextlib.suppress(OSError), open("/proc/thread-self/net/unix", "rb") as file:
                    found = _IN_THE_LIST.findall(file.read())
                self._names, self._read = frozenset(name.decode() for name in found), now
            return text in self._names


_sockets: Final = _Sockets()
_together: Final = threading.local()  # in a block of `asked_together`, `since`: when the block began


def name() -> str:
    """Return a new, random name for a Unix socket in Linux's abstract namespace. Other users cannot guess it."""
    return PREFIX + secrets.token_hex(16)


def bound() -> tuple[str, socket.socket | None]:
    """Create a Unix socket and bind it to a new name in Linux's abstract namespace; return the name and the socket.

    The caller has to close the socket. If binding fails, return an empty name and None.
    """
    own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    chosen = name()
    try:
        own.bind("\0" + chosen)
    except OSError:
        own.close()
        return "", None
    return chosen, own


def check(text: str) -> None:
    """Raise ValueError unless `text` has the form of the socket names that the function `name` returns.

    `text` comes from a peer, which may be faulty or malicious.
    """
    if len(text) != _LENGTH or not text.startswith(PREFIX) or not text.isascii() or not text.isprintable():
        raise ValueError(f"not the name of a rank's socket: {text[:100]!r}")


@contextlib.contextmanager
def asked_together() -> Iterator[None]:
    """In this `with` block, `is_bound` reads the kernel's list of all sockets once, instead of asking for each name.

    A thread that asks for the sockets of hundreds of ranks of its host so takes milliseconds. Threads of one process
    share the list. A socket that was bound when the list was read counts as bound in the whole block. A name that is
    not in the list is looked up as outside of the block, since the kernel may hide the list.
    """
    _together.since = time.monotonic()
    try:
        yield
    finally:
        del _together.since


def is_bound(text: str) -> bool:
    """Return whether some process has bound an abstract Unix socket to the name `text` in this network namespace.

    The function tries to bind the name itself, because a connection attempt would need the peer to accept it. Raises:
    ValueError if `text` has not the form of the names that ranks use; OSError if binding fails for another reason.
    """
    check(text)
    since = getattr(_together, "since", None)
    if since is not None and _sockets.has(text, since):
        return True
    for _ in range(3):  # another rank may check at the same moment, and bind the name for that
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
            try:
                probe.bind("\0" + text)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return False
        os.sched_yield()
    return True
