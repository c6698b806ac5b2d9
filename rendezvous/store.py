"""The interface of a rendezvous store, and how to open one from its URL.

Invariant: a store is a flat map from short text keys to bytes, shared by all ranks of a job. Each operation on one key
is atomic and takes effect at one moment between call and return. Every call ends by its deadline; only a call that
waits for a server's answer may overrun the deadline, by at most `GRACE` (1 s).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable
from urllib.parse import parse_qsl, unquote, urlsplit

from ._checks import DEFAULT_TIMEOUT, GRACE, MAX_KEY, MAX_VALUE, check_timeout

__all__ = ["DEFAULT_TIMEOUT", "GRACE", "MAX_KEY", "MAX_VALUE", "SCHEMES", "Store", "check_store", "open_store"]

SCHEMES = ("memory", "file", "redis", "rediss", "tcp", "mpi")


@runtime_checkable
class Store(Protocol):
    """A key-value store through which the ranks of a job find each other.

    Keys are printable text of 1 to `MAX_KEY` bytes, values are at most `MAX_VALUE` bytes. Several threads may use a
    store at once. A store never changes its arguments, nor the bytes that it has returned.

    All methods raise ValueError or TypeError for a wrong argument, before anything is sent. For example, a timeout must
    be finite and not negative. All methods raise StoreError if the store is unreachable, full or closed, or if it
    refuses the request. The message names the store, the cause and the elapsed time.
    """

    def set(self, key: str, value: bytes, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Store `value` under `key`, and replace an earlier value. `timeout` is in seconds.

        Raises: StoreError.
        """

    def get(self, key: str, timeout: float = DEFAULT_TIMEOUT) -> bytes | None:
        """Return the value of `key`, or None if the key does not exist. The call does not wait for the key.

        `timeout` is the limit for the answer of the store, in seconds. Raises: StoreError.
        """

    def wait(self, keys: Sequence[str], timeout: float = DEFAULT_TIMEOUT) -> list[bytes]:
        """Block until all of `keys` exist; return their values, in the order of `keys`.

        Raises: OpTimeout, which names the missing keys, if any are still missing after `timeout` seconds; StoreError.
        """

    def add(self, key: str, amount: int, timeout: float = DEFAULT_TIMEOUT) -> int:
        """Add `amount` to the integer stored under `key`, and return the sum. A missing key counts as 0.

        The integer is stored as decimal text. `timeout` is in seconds. Raises: an error that is both a StoreError and a
        ValueError if the value is no integer or the sum exceeds 64 bits. Raises: StoreError if the store fails; the sum
        may have been stored nevertheless.
        """

    def compare_set(
        self, key: str, expected: bytes | None, value: bytes | None, timeout: float = DEFAULT_TIMEOUT
    ) -> bytes | None:
        """Store `value` under `key` if its current value is `expected`. Return the value that `key` has after the call.

        None stands for a key that does not exist. So `compare_set(k, None, v)` creates the key k, and `compare_set(k,
        v, None)` deletes it. `timeout` is in seconds. Raises: StoreError; `value` may have been stored nevertheless.
        """

    def delete(self, keys: Sequence[str], timeout: float = DEFAULT_TIMEOUT) -> int:
        """Delete all of `keys` that exist, and return the number of deleted keys. `timeout` is in seconds.

        Raises: StoreError.
        """

    def close(self) -> None:
        """Close the sockets and files of this store object, and end its threads. Idempotent. Raises nothing.

        The keys remain in the store, unless this process holds the only copy of them. Calls in which other threads are
        waiting raise StoreError, and so do all later calls of other methods.
        """


def open_store(
    url: str | Store,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    host: bool = False,
    secret: bytes | None = None,
    insecure: bool = False,
) -> Store:
    """Open the key-value store with the URL `url`. If `url` is a Store object, return it unchanged.

    - `memory://name`: shared by the threads of this process
    - `file:///dir`: a directory that all ranks can access, NFS included; created if it does not exist
    - `redis://[[user]:password@]host[:6379][/db]`, `rediss://...[?ca=/path][&cert=/path&key=/path]`
    - `tcp://host:port`: a server in one rank, which passes `host=True`; the other ranks retry until the server runs
    - `mpi://`: shared by the ranks of this MPI job; the call is collective over MPI.COMM_WORLD

    `timeout` is in seconds. `secret` and `insecure` concern only `tcp://`. If a secret is given, client and server
    authenticate each other with it. Without a secret, a server accepts only a loopback address, unless `insecure` is
    True.

    Raises: ValueError for an unknown scheme or a malformed URL; StoreError if the store cannot be reached within
    `timeout`; AuthError if server and client do not share the secret; TransportUnavailable for `mpi://` without mpi4py.
    """
    check_timeout(timeout)
    if not isinstance(url, str):
        return check_store(url)
    scheme, colon, rest = url.partition("://")
    if not colon or scheme not in SCHEMES:
        raise ValueError(f"unknown store {_redact(url)!r}: known are " + ", ".join(f"{name}://" for name in SCHEMES))
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    allowed = {"ca", "cert", "key"} if scheme == "rediss" else set()
    if set(query) - allowed or parts.fragment:
        raise ValueError(f"store {_redact(url)!r}: cannot use what follows {'#' if parts.fragment else '?'}")
    if scheme == "memory":
        from .memory import MemoryStore

        return MemoryStore(unquote(rest) or "default")
    if scheme == "file":
        from .file import FileStore

        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise ValueError(f"store {url!r}: a directory is given by its absolute path, as in file:///shared/dir")
        return FileStore(unquote(parts.path), timeout=timeout)
    if scheme == "mpi":
        from .mpi import open_mpi

        if rest.strip("/"):
            raise ValueError(f"store {url!r}: mpi:// has no host; it is the MPI job of this process")
        return open_mpi(timeout=timeout)
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"store {_redact(url)!r}: the port is a number up to 65535") from None
    if not parts.hostname:
        raise ValueError(f"store {_redact(url)!r}: no host given")
    if scheme == "tcp":
        from .tcp import TcpStore

        if port is None or parts.path.strip("/") or parts.username is not None:
            raise ValueError(f"store {_redact(url)!r}: write tcp://host:port")
        if host:
            return TcpStore.serve(parts.hostname, port, secret=secret, insecure=insecure, timeout=timeout)
        return TcpStore(parts.hostname, port, secret=secret, timeout=timeout)
    from .redis import RedisStore

    database = parts.path.strip("/") or "0"
    if not database.isascii() or not database.isdigit():
        raise ValueError(f"store {_redact(url)!r}: the database is a number, not {database!r}")
    return RedisStore(
        parts.hostname,
        port or 6379,
        database=int(database),
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        tls=scheme == "rediss",
        ca_file=query.get("ca"),
        cert_file=query.get("cert"),
        key_file=query.get("key"),
        timeout=timeout,
    )


def check_store(store: Store) -> Store:
    """Return `store` unchanged if it has the methods of `Store` that read and write keys.

    Raises: TypeError if a method is missing. The function does not take ownership: the caller still has to close the
    store.
    """
    for name in ("set", "get", "wait", "add", "compare_set", "delete"):
        if not callable(getattr(store, name, None)):
            raise TypeError(f"a store is a URL or has the methods of Store; {type(store).__name__} has no {name}()")
    return store


def _redact(url: str) -> str:
    """`url` without the part before an @, which may be a password."""
    scheme, colon, rest = url.partition("://")
    return f"{scheme}{colon}...@{rest.rpartition('@')[2]}" if "@" in rest else url
