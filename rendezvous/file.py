"""A store in a directory that all ranks can access, on a local disk or on NFS.

Invariant: every change of a key is one atomic step of the file system. A process that dies at any moment leaves the key
as it was before or after its change, and leaves no lock for which others would have to wait.

A key is a directory, `k.<quoted key>`. The key does not exist if the directory is missing or empty. Otherwise the
directory has exactly one entry, a file called the token. Its random id is never used again in this store:

    i.<id>   the key's value is the content of this file
    x.<id>   the key's value is the content of the file `v.<id>` beside the key directories

A process changes a key in one of three ways:

    create    rename a directory with a new token to the key's directory: the file system refuses this
              unless the key's directory is missing or empty
    replace   write `v.<new>`, then rename the token `<old>` to `x.<new>`: fails if `<old>` is gone
    remove    unlink the token: fails if it is gone; then remove the directory, which fails, as it should, if
              another process has made a new token there

Because tokens never occur twice, a token that still exists proves that the key has not changed. So replace and remove
are exact compare-and-swaps without a lock. (A directory with one entry is listed in one step, so a reader finds the old
token or the new token, never none.) A crash leaves at most one unused `v.` file or `t.` directory (a new token that was
in preparation). A process that opens the store removes such leftovers if they are a day old by the file system's clock.
A crash may also leave the empty directory of a key. The next removal of this key removes the directory, too.

On NFS, rename, exclusive creation (O_EXCL) and rmdir are atomic on the server. When a process opens a directory, the
NFS client asks the server for the directory's state. So each check opens the directories that it depends on. A wait
polls, with pauses that grow from 1 ms to 50 ms. After 100 ms, pauses are at least 10 ms. Successive waits of a thread
for the same keys count as one wait. A system call on a hung NFS mount cannot have a deadline.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import re
import secrets
import stat
import threading
import time
from collections.abc import Sequence
from itertools import islice
from urllib.parse import quote

from collectives.native.errors import StoreError

from ._checks import (
    DEFAULT_TIMEOUT,
    MAX_VALUE,
    Deadline,
    check_amount,
    check_key,
    check_keys,
    check_timeout,
    check_value,
    count,
    missing,
)

_FAST_FOR = 0.1  # seconds of waiting after which polls come at least 10 ms apart
_SLOWEST = 0.05
_LEFTOVER_AGE = 24 * 3600.0  # seconds
_NAME_LIMIT = 200  # bytes of a file name that all usual file systems accept
_TOKEN = re.compile(r"[ix]\.[0-9a-f]{24}")
# These flags avoid waiting for the other end of a FIFO, and following links to files of others.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW


class FileStore:
    """The key-value store with the URL `file:///dir`: it keeps the keys and values in that directory.

    The directory is created, with mode 0700, if it does not exist. It is never removed.
    """

    def __init__(self, directory: str | os.PathLike[str], *, timeout: float = DEFAULT_TIMEOUT) -> None:
        check_timeout(timeout)
        self._root = os.path.abspath(os.fspath(directory))
        self._closed = False
        self._local = threading.local()  # this thread's last wait, if it timed out: (keys, seconds waited)
        probe = self._path(f"t.{secrets.token_hex(12)}")
        try:
            os.makedirs(self._root, mode=0o700, exist_ok=True)
            # Permission bits do not show whether writing is possible (root, read-only mounts, NFS squashing).
            os.mkdir(probe)
            now = os.stat(probe).st_mtime
            os.rmdir(probe)
            self._sweep(os.listdir(self._root), now - _LEFTOVER_AGE)
        except OSError as error:
            raise self._failed("cannot use the directory", error) from error

    def __repr__(self) -> str:
        return f"file://{self._root}"

    def set(self, key: str, value: bytes, timeout: float = DEFAULT_TIMEOUT) -> None:
        home = self._home(check_key(key))
        data = check_value(value)
        deadline = Deadline(timeout)
        tries = 0
        while not self._change(home, self._token(home), data):
            tries = self._yield_to_others(key, tries, deadline)

    def get(self, key: str, timeout: float = DEFAULT_TIMEOUT) -> bytes | None:
        home = self._home(check_key(key))
        return self._read(home, Deadline(timeout))[1]

    def wait(self, keys: Sequence[str], timeout: float = DEFAULT_TIMEOUT) -> list[bytes]:
        names = check_keys(keys)
        homes = {name: self._home(name) for name in names}
        deadline = Deadline(timeout)
        before = self._waited_for(names)
        while True:
            absent = self._absent(homes)
            if not absent:
                values = {name: self._read(home, deadline)[1] for name, home in homes.items()}
                found = [value for name in names if (value := values[name]) is not None]
                if len(found) == len(names):
                    return found
                absent = [name for name, value in values.items() if value is None]
            left = deadline.left()
            waited = before + deadline.elapsed()
            if not left:
                self._local.last = (names, waited)
                raise missing(repr(self), absent, deadline.elapsed())
            # Pause for a tenth of the time waited so far, so that a wait is at most a tenth longer than necessary.
            pause = max(waited / 10, 0.001 if waited < _FAST_FOR else 0.01)
            time.sleep(min(pause, _SLOWEST, left))

    def add(self, key: str, amount: int, timeout: float = DEFAULT_TIMEOUT) -> int:
        home = self._home(check_key(key))
        check_amount(amount)
        deadline = Deadline(timeout)
        tries = 0
        while True:
            token, value = self._read(home, deadline)
            total = count(repr(self), key, value, amount)
            if self._change(home, token, str(total).encode()):
                return total
            tries = self._yield_to_others(key, tries, deadline)

    def compare_set(
        self, key: str, expected: bytes | None, value: bytes | None, timeout: float = DEFAULT_TIMEOUT
    ) -> bytes | None:
        home = self._home(check_key(key))
        old = None if expected is None else check_value(expected)
        new = None if value is None else check_value(value)
        deadline = Deadline(timeout)
        tries = 0
        while True:
            token, current = self._read(home, deadline)
            if current != old:
                return current
            if self._change(home, token, new):
                return new
            tries = self._yield_to_others(key, tries, deadline)

    def delete(self, keys: Sequence[str], timeout: float = DEFAULT_TIMEOUT) -> int:
        names = check_keys(keys)
        deadline = Deadline(timeout)
        found = 0
        for name in names:
            home = self._home(name)
            tries = 0
            while not self._change(home, token := self._token(home), None):
                tries = self._yield_to_others(name, tries, deadline)
            found += token is not None
        return found

    def close(self) -> None:
        self._closed = True

    def _path(self, name: str) -> str:
        return os.path.join(self._root, name)

    def _home(self, key: str) -> str:
        """The directory of `key`."""
        name = quote(key, safe="")
        if len(name) > _NAME_LIMIT:
            name = f"{name[:40]}.{hashlib.sha256(key.encode()).hexdigest()}"
            return self._path("h." + name)
        return self._path("k." + name)

    def _absent(self, homes: dict[str, str]) -> list[str]:
        """Those keys of `homes` (key to directory) that do not exist; more than 4 keys are looked up in one listing."""
        self._check_open()
        try:
            if len(homes) > 4:
                with os.scandir(self._root) as entries:
                    most = 16 * len(homes) + 1024  # a directory with many other entries is not listed completely
                    present = {entry.name for entry in islice(entries, most)}
                if len(present) < most:
                    return [name for name, home in homes.items() if os.path.basename(home) not in present]
            os.close(os.open(self._root, os.O_RDONLY | os.O_DIRECTORY))  # makes an NFS client ask the server
        except OSError as error:
            raise self._failed("cannot list the directory", error) from error
        return [name for name, home in homes.items() if self._token(home) is None]

    def _token(self, home: str) -> str | None:
        """The token (name of the one entry) in the key directory `home`; None if the key does not exist."""
        self._check_open()
        try:
            with os.scandir(home) as entries:
                # .nfs…: a removed file that another process has open; NFS keeps it for a while
                names = [entry.name for entry in islice(entries, 64) if not entry.name.startswith(".nfs")]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(f"cannot read {os.path.basename(home)}", error) from error
        if names and not _TOKEN.fullmatch(names[0]):
            raise self._foreign(os.path.join(os.path.basename(home), names[0]), "was not written by this library")
        # During a rename, a listing may show both names. Either will do, since changes check the token again.
        return names[0] if names else None

    def _read(self, home: str, deadline: Deadline) -> tuple[str | None, bytes | None]:
        """The token (name of the one entry) in the key directory `home`, and the key's value; both None if no key."""
        before = None
        while True:
            token = self._token(home)
            if token is None:
                return None, None
            kind, _, name = token.partition(".")
            path = os.path.join(home, token) if kind == "i" else self._path(f"v.{name}")
            try:
                with open(os.open(path, _READ), "rb") as file:
                    status = os.fstat(file.fileno())
                    if not stat.S_ISREG(status.st_mode):
                        raise self._foreign(path, "is no file")
                    if status.st_size > MAX_VALUE:
                        raise self._foreign(path, f"holds {status.st_size} bytes, more than {MAX_VALUE}")
                    data = file.read(MAX_VALUE)
            except FileNotFoundError:  # the key changed between the two reads, or another program removed the file
                if token == before and deadline.passed:
                    raise self._foreign(path, "is missing (was it removed?)") from None
                before = token
                time.sleep(0.001)
                continue
            except OSError as error:
                raise self._failed(f"cannot read {os.path.relpath(path, self._root)}", error) from error
            return token, data

    def _change(self, home: str, old: str | None, value: bytes | None) -> bool:
        """Set the key whose directory is `home` to `value`, or remove the key if `value` is None.

        `old` is the token (name of the directory's one entry) that the caller has read; None: the key did not exist.
        Returns False, and changes nothing, if another process has replaced or removed this token.
        """
        self._check_open()
        if old is None and value is not None:
            return self._create(home, value)
        if old is None:
            _remove_if_empty(home)  # a process that was interrupted may have left it
            return True
        new = secrets.token_hex(12)
        fresh = self._path(f"v.{new}")
        try:
            if value is None:
                os.unlink(os.path.join(home, old))
            else:
                self._write(fresh, value)
                os.rename(os.path.join(home, old), os.path.join(home, f"x.{new}"))
        except OSError as error:
            if value is not None and self._token(home) == f"x.{new}":
                pass  # it is done: NFS lost the answer, and its second try did not find the old name
            else:
                _forget(fresh)
                if isinstance(error, FileNotFoundError) and os.path.isdir(self._root):
                    return False
                raise self._failed(f"cannot change {os.path.basename(home)}", error) from error
        if old.startswith("x."):
            _forget(self._path(f"v.{old[2:]}"))
        if value is None:
            _remove_if_empty(home)
        return True

    def _create(self, home: str, value: bytes) -> bool:
        name = secrets.token_hex(12)
        staging = self._path(f"t.{name}")
        token = f"i.{name}"
        try:
            os.mkdir(staging, 0o700)
            self._write(os.path.join(staging, token), value)
            os.rename(staging, home)
        except OSError as error:
            if self._token(home) == token:
                return True  # it is done, although NFS lost the answer
            _forget(os.path.join(staging, token))
            _remove_if_empty(staging)
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                return False
            raise self._failed(f"cannot create {os.path.basename(home)}", error) from error
        return True

    def _write(self, path: str, value: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb", buffering=0) as file:
            view = memoryview(value)
            while view:
                view = view[file.write(view) :]

    def _sweep(self, names: list[str], before: float) -> None:
        """Remove leftovers of processes that died while they wrote: those of `names` not modified since `before`."""
        old = []
        for name in names:
            with contextlib.suppress(OSError):
                if name[:2] in ("v.", "t.") and os.stat(self._path(name)).st_mtime < before:
                    old.append(name)
        if not old:
            return
        in_use: set[str] = set()
        for home in (name for name in names if name[:2] in ("k.", "h.")):
            with contextlib.suppress(OSError):
                in_use.update(f"v.{token[2:]}" for token in os.listdir(self._path(home)))
        for name in set(old) - in_use:
            _forget(self._path(name))
            with contextlib.suppress(OSError):
                for token in os.listdir(self._path(name)):
                    _forget(self._path(os.path.join(name, token)))
            _remove_if_empty(self._path(name))

    def _yield_to_others(self, key: str, tries: int, deadline: Deadline) -> int:
        """Pause before a retry, because another process has changed the key first; returns `tries` + 1, at most 10.

        The pause is random, so that several processes do not retry at the same time. Raises StoreError if the
        deadline has passed and `tries` is more than 3.
        """
        if tries > 3 and deadline.passed:
            raise StoreError(f"{self!r}: {key!r} kept changing for {deadline.elapsed():.1f} s; gave up")
        time.sleep(random.uniform(0, min(0.05, 0.0005 * 2**tries)))
        return min(tries + 1, 10)

    def _waited_for(self, names: list[str]) -> float:
        last, waited = getattr(self._local, "last", ((), 0.0))
        self._local.last = ((), 0.0)
        return waited if last == names else 0.0

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self!r} was closed")

    def _foreign(self, path: str, what: str) -> StoreError:
        """The error for an entry `path` of the store's directory that another program has changed; `what` says how."""
        name = os.path.relpath(os.path.join(self._root, path), self._root)
        return StoreError(f"{self!r}: {name!r} {what}; empty the directory, or use one that nothing else uses")

    def _failed(self, what: str, error: OSError) -> StoreError:
        return StoreError(f"file store in {self._root}: {what}: {error.strerror or error}")


def _forget(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _remove_if_empty(directory: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(directory)
