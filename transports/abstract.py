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
    """A unique name for an abstract unix socket that others cannot guess."""
    return PREFIX + secrets.token_hex(16)


def bound() -> tuple[str, socket.socket | None]:
    """A new name and the abstract unix socket bound to it, which the caller closes; "" and None if that fails."""
    own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    chosen = name()
    try:
        own.bind("\0" + chosen)
    except OSError:
        own.close()
        return "", None
    return chosen, own


def check(text: str) -> None:
    """Raise ValueError unless `text`, received from a peer, has the form of the socket names that ranks make."""
    if len(text) != _LENGTH or not text.startswith(PREFIX) or not text.isascii() or not text.isprintable():
        raise ValueError(f"not the name of a rank's socket: {text[:100]!r}")


def is_bound(text: str) -> bool:
    """Whether an abstract unix socket of this network namespace has the name `text`, tested by trying to bind the name.

    A connection to the name would show this, too, but the peer would have to accept it. Raises: ValueError if no rank
    makes such names; OSError.
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
