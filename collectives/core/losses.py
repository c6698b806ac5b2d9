"""The record of a lost peer that a rank writes for `collectives run`, so that the launcher can name the first cause.

A rank that fails because it lost a peer often ends before that peer, whose interpreter may need time to unload a
framework. So the order in which processes end does not show which rank failed first, but these records do.

Invariant: the first loss is kept, in one small file that the launcher has named. The file is removed if the program
continues with a new group, or ends for another reason than the loss. Nothing here raises.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from collectives.native import errors

VARIABLE: Final = "COLLECTIVES_LOSS_FILE"
_LONGEST: Final = 300  # characters of a message


@dataclass(frozen=True, slots=True)
class Loss:
    """The record of a lost peer: when a rank lost it, and the text of the error that the rank raised.

    `at`: seconds on the monotonic clock of the rank's host.
    """

    at: float
    text: str


def watch(env: Mapping[str, str]) -> None:
    """From now on, write the first PeerLost error of this process to the file that COLLECTIVES_LOSS_FILE names.

    Does nothing if `env` does not have this variable. May be called again.
    """
    path = env.get(VARIABLE)
    if path:
        _record.begin(path)


def note(text: str) -> None:
    """Record that this rank fails because of another rank, although it raises no PeerLost; `text` says how."""
    _record.write(text)


def forget() -> None:
    """Remove this process's record of a lost peer, because a new group has formed, and the loss is in the past."""
    _record.take_back()


def read(path: str) -> Loss | None:
    """Reads the record of a lost peer from the file `path`, which a rank wrote; None if that rank lost no peer."""
    try:
        with open(path, encoding="utf-8") as file:
            match json.loads(file.read(16 * _LONGEST)):
                case {"at": float(at), "text": str(text)}:
                    return Loss(at, "".join(c if c.isprintable() else " " for c in text[:_LONGEST]))
    except (OSError, ValueError, RecursionError):
        pass
    return None


class _Record:
    """The file of this process."""

    def __init__(self) -> None:
        self._path = ""
        self._process = 0
        self._written = False

    def begin(self, path: str) -> None:
        if not self._path:
            errors.witnesses.append(self.write)
            atexit.register(self._at_exit)
        self._path, self._process = path, os.getpid()

    def write(self, text: object) -> None:
        if self._written or os.getpid() != self._process:  # a forked child is no rank
            return
        self._written = True
        with contextlib.suppress(OSError), open(self._path, "w", encoding="utf-8") as file:
            file.write(json.dumps({"at": time.monotonic(), "text": str(text)[:_LONGEST]}))

    def _at_exit(self) -> None:
        """Remove the record if the program ended by an exception that has nothing to do with a peer."""
        if os.getpid() == self._process and not _of_ours(getattr(sys, "last_value", None)):
            self.take_back()

    def take_back(self) -> None:
        if self._written:
            self._written = False
            with contextlib.suppress(OSError):
                os.unlink(self._path)


def _of_ours(error: BaseException | None) -> bool:
    """Whether `error`, or an exception that led to it, is an error of this library; True if `error` is None."""
    seen: set[int] = set()
    found = error is None
    while error is not None and not found and id(error) not in seen:
        seen.add(id(error))
        found = isinstance(error, errors.CollectiveError)
        error = error.__cause__ or error.__context__
    return found


_record: Final = _Record()
