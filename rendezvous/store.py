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
    """A map through which the ranks of a job find each other.

    Keys are 1 to `MAX_KEY` bytes of printable text, values at most `MAX_VALUE` bytes. A store may be used by several
    threads at once. A store never changes its arguments, nor the bytes that it has returned.

    For a wrong argument, such as a timeout that is NaN, infinite or negative, all methods raise ValueError or TypeError
    before anything is sent. They raise StoreError if the store is unreachable, refuses the request, has no room or was
    closed; the message names the store, the cause and the elapsed time.
    """

    def set(self, key: str, value: bytes, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Store `value` under `key`; an earlier value is replaced.

        Raises: StoreError.
        """

    def get(self, key: str, timeout: float = DEFAULT_TIMEOUT) -> bytes | None:
        """The current value of `key`; None at once if the key does not exist.

        `timeout` limits the exchange with the store.

        Raises: StoreError.
        """

    def wait(self, keys: Sequence[str], timeout: float = DEFAULT_TIMEOUT) -> list[bytes]:
        """Block until all of `keys` exist; returns their values, in the order of `keys`.

        Raises: OpTimeout, which names the keys that are missing at the deadline; StoreError.
        """

    def add(self, key: str, amount: int, timeout: float = DEFAULT_TIMEOUT) -> int:
        """Add `amount` to the decimal number stored under `key` (a missing key counts as 0); returns the sum.

        Raises: an error that is both StoreError and ValueError if the value is no number, or the sum does not fit into
        64 bits. Raises any other StoreError if the exchange with the store fails; the sum may then have been stored.
        """

    def compare_set(
        self, key: str, expected: bytes | None, value: bytes | None, timeout: float = DEFAULT_TIMEOUT
    ) -> bytes | None:
        """If the value of `key` is `expected`, store `value`; in any case return the value that `key` has then.

        None stands for a key that does not exist: `compare_set(k, None, v)` creates the key k, and
        `compare_set(k, v, None)` deletes it. Raises: StoreError; `value` may have been stored nevertheless.
        """

    def delete(self, keys: Sequence[str], timeout: float = DEFAULT_TIMEOUT) -> int:
        """Remove those of `keys` that exist; returns the number of removed keys.

        Raises: StoreError.
        """

    def close(self) -> None:
        """Release the sockets, threads and files of this object; keys stay, unless it keeps them itself. Idempotent.

        Calls that other threads are waiting in, and all later calls of other methods, raise StoreError. `close` itself
        raises nothing.
        """


def open_store(
    url: str | Store,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    host: bool = False,
    secret: bytes | None = None,
    insecure: bool = False,
) -> Store:
    """Open the store that `url` names; a Store is returned unchanged.

    - `memory://name`: shared by the threads of this process
    - `file:///dir`: a directory that all ranks can access, NFS included; created if it does not exist
    - `redis://[[user]:password@]host[:6379][/db]`, `rediss://...[?ca=/path][&cert=/path&key=/path]`
    - `tcp://host:port`: a server in the rank that passes `host=True`; other ranks retry until the server runs
    - `mpi://`: shared by the ranks of this MPI job; all of them must call `open_store` (collective over MPI.COMM_WORLD)

    `secret`: with it, client and server of a tcp store authenticate each other. Without a secret, a tcp server accepts
    only a loopback address; `insecure=True` lifts this limit.

    Raises: ValueError for an unknown scheme or a malformed URL; StoreError if the store cannot be reached within
    `timeout`; AuthError if server and client do not share the secret; TransportUnavailable for mpi without mpi4py.
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
    """Returns `store` itself if it has the methods of a Store, else raises TypeError; the caller has to close it."""
    for name in ("set", "get", "wait", "add", "compare_set", "delete"):
        if not callable(getattr(store, name, None)):
            raise TypeError(f"a store is a URL or has the methods of Store; {type(store).__name__} has no {name}()")
    return store


def _redact(url: str) -> str:
    """`url` without the part before an @, which may be a password."""
    scheme, colon, rest = url.partition("://")
    return f"{scheme}{colon}...@{rest.rpartition('@')[2]}" if "@" in rest else url
