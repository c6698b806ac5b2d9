"""A store in a Redis server (6.0 or newer), over TCP or TLS.

Invariant: each operation is one Lua script, so it is atomic on the server. Every key has a time to live (`TTL`), which
each read or write of the key renews. So the server removes the keys of a job that has died when their time is over.

Keys on the server, all under `collectives:`

    v:<key>      the value
    w:<key>      set of the waiters (one for each call of `wait`) to wake when <key> is created
    l:<waiter>   list on which one waiter blocks (BLPOP); the script that creates <key> pushes an item, to wake it

The script of `wait` looks up its keys, and adds the waiter to the set of the first key that is missing. The script that
creates a key wakes the waiters in the key's set; they look up their keys again. So no wake-up is lost, and no client
polls. Waiters use lists rather than pub/sub, because Redis users are often restricted to key patterns and have no
access to channels.

The scripts compute the names of keys. Redis Cluster does not allow this: use a single server, or the primary of a
replicated server.
"""

from __future__ import annotations

import functools
import inspect
import os
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, InvalidResponse, RedisError, ResponseError
from redis.retry import Retry

from collectives.native.errors import StoreError

from . import _redis_scripts
from ._checks import (
    DEFAULT_TIMEOUT,
    GRACE,
    MAX_VALUE,
    Deadline,
    Unreachable,
    check_amount,
    check_key,
    check_keys,
    check_value,
    count,
    missing,
)

T = TypeVar("T")

TTL = 24 * 3600.0  # seconds; far longer than any join, so that a change of the server's clock does no harm
PATIENCE = 4.0  # seconds for which clients retry if the server is unreachable; a rank has failed within 5
_ANSWER = 3.0  # seconds after which a server that does not answer counts as lost
_SLICE = 1.0  # seconds of one BLPOP, after which a waiter checks whether its store was closed
_WAITER_TTL = 60_000  # milliseconds; a waiter renews its keys every _SLICE
_PREFIX = "collectives:"


class RedisStore:
    """The key-value store on a Redis server, with the URL `redis://` or, over TLS, `rediss://`.

    Threads may call this object at the same time: each call has a connection of its own. After a call, the connection
    stays open for later calls.
    """

    def __init__(
        self,
        host: str,
        port: int = 6379,
        *,
        database: int = 0,
        username: str | None = None,
        password: str | None = None,
        tls: bool = False,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        ttl: float = TTL,
    ) -> None:
        """Connect; if the server is unreachable, retry for `PATIENCE` seconds, but at most for `timeout` seconds.

        Raises: StoreError if the server cannot be reached in this time, refuses the password or the database, or has an
        invalid certificate.
        """
        deadline = Deadline(timeout)
        self._name = f"{'rediss' if tls else 'redis'}://{host}:{port}/{database}"
        self._where = {"host": host, "port": port, "db": database, "username": username, "password": password}
        self._tls = (ca_file, cert_file, key_file) if tls else None
        self._ttl = str(max(1, int(ttl * 1000)))
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        self._idle: list[Any] = []
        self._closed = False
        self._pid = os.getpid()
        try:
            self._command(deadline, "PING")
        except Unreachable as error:
            raise StoreError(str(error)) from error

    def __repr__(self) -> str:
        return self._name

    def set(self, key: str, value: bytes, timeout: float = DEFAULT_TIMEOUT) -> None:
        self._script(Deadline(timeout), _redis_scripts.SET, [check_key(key)], check_value(value), again=False)

    def get(self, key: str, timeout: float = DEFAULT_TIMEOUT) -> bytes | None:
        match self._script(Deadline(timeout), _redis_scripts.GET, [check_key(key)]):
            case [value]:
                return self._value(key, value)
        raise self._nonsense()

    def wait(self, keys: Sequence[str], timeout: float = DEFAULT_TIMEOUT) -> list[bytes]:
        names = check_keys(keys)
        deadline = Deadline(timeout)
        waiter = f"{_PREFIX}l:{secrets.token_hex(8)}"
        if not names:
            self._check_open()
            return []
        while True:
            last = deadline.passed
            match self._script(deadline, _redis_scripts.WAIT, names, before=(waiter, 0 if last else 1)):
                case [1, [*found]] if len(found) == len(names):
                    values = [self._value(key, value) for key, value in zip(names, found, strict=True)]
                    return [value for value in values if value is not None]
                case [0, [*found]] if found and all(isinstance(key, bytes) for key in found):
                    absent = [key.decode(errors="replace") for key in found]
                case _:
                    raise self._nonsense()
            if last:
                raise missing(repr(self), absent, deadline.elapsed())
            pause = min(_SLICE, max(deadline.left(), 0.001))
            self._command(deadline, "BLPOP", waiter, f"{pause:.3f}", extra=pause)

    def add(self, key: str, amount: int, timeout: float = DEFAULT_TIMEOUT) -> int:
        check_amount(amount)
        match self._script(Deadline(timeout), _redis_scripts.ADD, [check_key(key)], amount, again=False):
            case [1, bytes(total)] if len(total) <= 20 and total.removeprefix(b"-").isdigit():
                return int(total)
            case [0, bytes() | None as value]:
                return count(repr(self), key, value, amount)  # raises the error
        raise self._nonsense()

    def compare_set(
        self, key: str, expected: bytes | None, value: bytes | None, timeout: float = DEFAULT_TIMEOUT
    ) -> bytes | None:
        old = (0, b"") if expected is None else (1, check_value(expected))
        new = (0, b"") if value is None else (1, check_value(value))
        found = self._script(Deadline(timeout), _redis_scripts.COMPARE_SET, [check_key(key)], *old, *new, again=False)
        return self._value(key, found)

    def delete(self, keys: Sequence[str], timeout: float = DEFAULT_TIMEOUT) -> int:
        match self._script(Deadline(timeout), _redis_scripts.DELETE, check_keys(keys)):
            case int(found):
                return found
        raise self._nonsense()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        if self._pid != os.getpid():
            return
        for connection in idle:
            connection.disconnect()

    # -- one exchange

    def _script(
        self,
        deadline: Deadline,
        script: str,
        keys: Sequence[str],
        *arguments: str | int | bytes,
        before: Sequence[str | int] = (),
        again: bool = True,
    ) -> Any:
        """Run a Lua script on the server; returns its result. `again`: whether to retry if the connection is lost."""
        line = (script, 0, _PREFIX, self._ttl, _WAITER_TTL, *before, *keys, *arguments)
        return self._command(deadline, "EVAL", *line, again=again, keys=keys)

    def _command(
        self,
        deadline: Deadline,
        *command: str | int | bytes,
        again: bool = True,
        extra: float = 0,
        keys: Sequence[str] = (),
    ) -> Any:
        """Send a Redis command; returns the server's answer.

        `again`: whether to send the command again if the connection is lost; `extra`: seconds for which the command may
        block on the server; `keys`: the keys that an error message names.
        """
        patience = Deadline(min(PATIENCE, deadline.left()))
        pause = 0.02
        while True:
            self._check_open()
            sent = False
            try:
                connection = self._take(deadline)
                sent = True
                return self._exchange(connection, deadline, extra, command)
            except (BusyLoadingError, OSError, redis.ConnectionError) as error:
                self._check_open()
                if _hopeless(error):
                    raise self._failed(error, deadline) from error
                # the command may have run: it is sent again only if `again` allows it
                if patience.passed or (sent and not again):
                    raise Unreachable(str(self._failed(error, deadline))) from error
                time.sleep(min(pause, patience.left()))
                pause = min(2 * pause, 0.3)
            except redis.TimeoutError as error:  # the server is slow, or its process is suspended
                raise Unreachable(str(self._failed(error, deadline, keys))) from error
            except RedisError as error:
                raise self._failed(error, deadline, keys) from error

    def _exchange(self, connection: Any, deadline: Deadline, extra: float, command: Sequence[str | int | bytes]) -> Any:
        try:
            connection.send_command(*command)
            # After the first bytes of an answer, the timeout of the connection itself applies.
            if not connection.can_read(extra + min(deadline.left(), _ANSWER) + GRACE):
                raise redis.TimeoutError("the server did not answer")
            answer = _parsed(connection.read_response)
        except ResponseError:
            self._put_back(connection)
            raise
        except BaseException:  # for example an interrupt: the answer may still come
            connection.disconnect()
            raise
        self._put_back(connection)
        return answer

    def _value(self, key: str, value: object) -> bytes | None:
        """The value of `key` in the server's answer."""
        if value is not None and not isinstance(value, bytes):
            raise self._nonsense()
        if value is not None and len(value) > MAX_VALUE:
            raise StoreError(f"{self!r}: key {key!r} holds {len(value)} bytes, more than {MAX_VALUE}")
        return value

    def _nonsense(self) -> StoreError:
        return StoreError(f"{self!r}: the answer makes no sense; is it a Redis server, 6.0 or newer?")

    def _take(self, deadline: Deadline) -> Any:
        connection = self._take_idle()
        if connection is not None:
            return connection
        # Threads connect one at a time: many handshakes at once would be slow, and most threads find a connection that
        # another thread has released when it is their turn.
        if not self._connecting.acquire(timeout=min(PATIENCE, deadline.left()) + GRACE):
            raise redis.TimeoutError("too many threads connect at once")
        try:
            return self._take_idle() or self._connect(max(deadline.left(), GRACE))
        finally:
            self._connecting.release()

    def _take_idle(self) -> Any:
        """An idle connection that is still open and has no unread data; None if there is no such connection."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            try:
                if not connection.can_read(0):
                    return connection
            except (OSError, RedisError):
                pass
            connection.disconnect()  # closed by the server, or with an unexpected answer

    def _connect(self, left: float) -> Any:
        options: dict[str, Any] = {
            **self._where,
            "socket_connect_timeout": min(PATIENCE, left),
            "socket_timeout": min(PATIENCE, max(left, 1.0)),
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            **_UNNAMED,
        }
        make: Callable[..., Any] = redis.Connection
        if self._tls is not None:
            ca, cert, key = self._tls
            make = functools.partial(_TlsConnection, _context(ca, cert, key, *map(_changed, self._tls)))
            options.update(ssl_ca_certs=ca, ssl_certfile=cert, ssl_keyfile=key, ssl_check_hostname=True)
        fresh = make(**options)
        try:
            _parsed(fresh.connect)
        except BaseException:
            fresh.disconnect()
            raise
        return fresh

    def _put_back(self, connection: Any) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.disconnect()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self!r} was closed")
        if self._pid != os.getpid():  # in a forked child: the connections belong to the parent
            raise StoreError(f"{self!r} was opened by process {self._pid}; a forked child must open its own")

    def _failed(self, error: BaseException, deadline: Deadline, keys: Sequence[str] = ()) -> StoreError:
        at = f" at {', '.join(map(repr, keys[:4]))}{' ...' if len(keys) > 4 else ''}" if keys else ""
        return StoreError(f"{self!r} failed{at} after {deadline.elapsed():.1f} s: {error or type(error).__name__}")


def _unnamed() -> Mapping[str, None]:
    """The options with which a connection does not tell the server the name and version of redis-py.

    Otherwise redis-py sends two more requests for each connection. Some versions also read their own package's metadata
    each time, which takes longer than to connect.
    """
    known = inspect.signature(redis.Connection.__mro__[1]).parameters
    names = ("driver_info",) if "driver_info" in known else ("lib_name", "lib_version")
    return {name: None for name in names if name in known}


_UNNAMED = _unnamed()


class _TlsConnection(redis.SSLConnection):
    """A TLS connection that reuses a given SSL context: to make one takes longer than to connect and shake hands.

    For this, the class overrides `_wrap_socket_with_ssl`. Versions of redis-py without this method make a context for
    each connection, from the options of the same meaning (`ssl_ca_certs` and others).
    """

    def __init__(self, context: ssl.SSLContext, **options: Any) -> None:
        super().__init__(**options)
        self._context = context

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        return self._context.wrap_socket(sock, server_hostname=self.host)


@functools.lru_cache(maxsize=8)
def _context(ca: str | None, cert: str | None, key: str | None, *_: float) -> ssl.SSLContext:
    """A TLS context that trusts only the authorities in the file `ca`, or the system's authorities if `ca` is None.

    `cert` and `key` are the files of the client's certificate, if any. The other arguments are the times at which the
    files were last changed, so that a changed file is read again although results are cached.
    """
    context = ssl.create_default_context(cafile=ca)
    if cert is not None:
        context.load_cert_chain(cert, key)
    return context


def _changed(path: str | None) -> float:
    return 0.0 if path is None else os.stat(path).st_mtime


def _parsed(read: Callable[[], T]) -> T:
    """The result of `read()`, a call into redis-py's parser.

    The parser raises arbitrary exceptions for a malformed answer; these become InvalidResponse.
    """
    try:
        return read()
    except (RedisError, OSError):
        raise
    except Exception as error:
        raise InvalidResponse(f"the answer makes no sense ({error!r}); is it a Redis server, 6.0 or newer?") from error


def _hopeless(error: BaseException) -> bool:
    """Whether a retry is useless after `error`: wrong password, invalid certificate, missing or unreadable file."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, AuthenticationError | ssl.SSLError | FileNotFoundError | PermissionError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
