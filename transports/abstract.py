"""Names of abstract unix sockets, and whether one is bound in this network namespace.

Invariant: an abstract name belongs to one network namespace of one kernel, and is free again when its socket is closed.
In one namespace only one socket can have the name; another namespace may use the same name for another socket.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
from typing import Final

PREFIX: Final = "pycollectives-"
_LENGTH: Final = len(PREFIX) + 32


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


def is_bound(text: str) -> bool:
    """Return whether some process has bound an abstract Unix socket to the name `text` in this network namespace.

    The function tries to bind the name itself, because a connection attempt would need the peer to accept it. Raises:
    ValueError if `text` has not the form of the names that ranks use; OSError if binding fails for another reason.
    """
    check(text)
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
