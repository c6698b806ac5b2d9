"""The roster of a group, the list of its members, as the leader publishes it: one value that each rank fetches once.

Invariant: every rank gets the same bytes, and has checked the HMAC over all of them before it makes a `Roster`. So a
roster is immutable, and threads of one process that have each fetched and checked the same bytes may keep one object.

Encoding: the nonces of all ranks (16 bytes each), then for each part of `PART` ranks the length of its compressed text
(4 bytes), then these texts: zlib over JSON, a list of [origin, record]. The records of ranks resemble each other, so
compressed they take about a fifth. A rank finds its own nonce without decompressing anything. A part is decompressed
when a record in it is read, so a rank keeps about 100 bytes of each member.
"""

from __future__ import annotations

import itertools
import json
import struct
import sys
import threading
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, overload

from collectives.native.errors import StoreError

T = TypeVar("T")

PART: Final = 64  # ranks whose records are compressed together
NONCE: Final = 16  # bytes
_LONGEST: Final = PART * (4096 + 2 * 6 * 1024 + 64)  # bytes of a part's JSON: records, and origins with escapes
_LENGTH: Final = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class Entry:
    """One member of a group, as an entry in the list of members.

    `nonce` is a random text, 32 hexadecimal digits, that the rank drew when it joined. `origin` is the result of
    `_process.origin` in the rank's process. `record` is the data that the rank passes to all other ranks.
    """

    nonce: str
    origin: str
    record: Mapping[str, Any]


class Roster(Sequence[Entry]):
    """The members of a group by rank, decoded when they are read.

    `data` is the encoded roster. Reading a member raises StoreError if `data` is malformed; `parse` finds that out
    before.
    """

    __slots__ = ("__weakref__", "_decoded", "_lock", "_origins", "_part", "_starts", "data", "size")

    def __init__(self, data: bytes, size: int, starts: Sequence[int]) -> None:
        self.data: Final = data
        self.size: Final = size
        self._starts: Final = tuple(starts)  # where the compressed parts begin in `data`, and where the last one ends
        self._part: tuple[int, list[Any]] | None = None  # the part that was read last
        self._origins: tuple[str, ...] | None = None
        self._decoded: Any = None
        self._lock: Final = threading.Lock()

    @staticmethod
    def of(entries: Iterable[Entry]) -> Roster:
        """Encode the list of members `entries`. Raises ValueError for a nonce that is not 32 hexadecimal digits."""
        members = list(entries)
        nonces = [bytes.fromhex(entry.nonce) for entry in members]
        if any(len(nonce) != NONCE for nonce in nonces):
            raise ValueError("a nonce is 32 hexadecimal digits")
        parts = []
        for start in range(0, len(members), PART):
            rows = [[entry.origin, entry.record] for entry in members[start : start + PART]]
            parts.append(zlib.compress(json.dumps(rows, separators=(",", ":"), allow_nan=False).encode()))
        data = b"".join([*nonces, *(_LENGTH.pack(len(part)) for part in parts), *parts])
        found = Roster.parse(data, len(members))
        assert found is not None
        return found

    @staticmethod
    def parse(data: bytes, size: int) -> Roster | None:
        """Return the roster of `size` ranks in `data`; None if the lengths in `data` do not fit its own length.

        Does not decompress the members: without an HMAC, anybody may have written the roster, and it may still be
        malformed; see `check`.
        """
        parts = -(-size // PART)
        at = NONCE * size
        if len(data) < at + _LENGTH.size * parts:
            return None
        lengths = struct.unpack_from(f"!{parts}I", data, at)
        starts = list(itertools.accumulate(lengths, initial=at + _LENGTH.size * parts))
        return Roster(data, size, starts) if starts[-1] == len(data) else None

    def check(self) -> bool:
        """Decode all members once; return False if the roster is malformed."""
        try:
            for _ in self:
                pass
        except StoreError:
            return False
        return True

    @property
    def nonces(self) -> bytes:
        """The nonces of all ranks, one after another."""
        return self.data[: NONCE * self.size]

    def nonce(self, rank: int) -> str:
        return self.data[NONCE * rank : NONCE * (rank + 1)].hex()

    def origin(self, rank: int) -> str:
        """Return `self[rank].origin`. The origins of all ranks are kept when one was read; most ranks read none."""
        if self._origins is None:
            self._origins = tuple(sys.intern(entry.origin) for entry in self)
        return self._origins[rank]

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, rank: int) -> Entry: ...

    @overload
    def __getitem__(self, rank: slice) -> Sequence[Entry]: ...

    def __getitem__(self, rank: int | slice) -> Entry | Sequence[Entry]:
        if isinstance(rank, slice):
            return [self[one] for one in range(*rank.indices(self.size))]
        if not -self.size <= rank < self.size:
            raise IndexError(f"rank {rank} of {self.size}")
        rank %= self.size
        number, place = divmod(rank, PART)
        part = self._part
        if part is None or part[0] != number:
            part = self._part = number, self._read(number)
        origin, record = part[1][place]
        return Entry(self.nonce(rank), origin, record)

    def once(self, decode: Callable[[], T]) -> T:
        """Return the result of `decode()`, which is called at most once for each roster of this process.

        Threads of one process that share this roster so share what they derive from it. The result is immutable, the
        same function is passed by all callers, and an error is raised again in each of them.
        """
        with self._lock:
            if self._decoded is None:
                self._decoded = decode()
                self._part = None
            found: T = self._decoded
            return found

    def _read(self, number: int) -> list[Any]:
        """The origins and records of a part's ranks. Raises StoreError if the part is malformed."""
        wanted = min(PART, self.size - number * PART)
        unpacker = zlib.decompressobj()
        try:
            text = unpacker.decompress(self.data[self._starts[number] : self._starts[number + 1]], _LONGEST)
            rows = json.loads(text) if unpacker.eof and not unpacker.unused_data else None
        except (zlib.error, ValueError, RecursionError):
            rows = None
        if not isinstance(rows, list) or len(rows) != wanted or not all(map(_is_row, rows)):
            raise StoreError(f"the list of a group's members is malformed from rank {number * PART} on")
        return rows


def _is_row(row: Any) -> bool:
    match row:
        case [str(origin), dict()]:
            return len(origin) <= 1024 and origin.isprintable()
    return False


_known: weakref.WeakValueDictionary[bytes, Roster] = weakref.WeakValueDictionary()
_known_lock: Final = threading.Lock()


def shared(roster: Roster) -> Roster:
    """Return an earlier roster of this process with the same bytes if there is one, else `roster`.

    Call it only for a roster whose HMAC the caller has checked itself: the result has the same bytes.
    """
    with _known_lock:
        return _known.setdefault(roster.data, roster)


class Part(Sequence[T]):
    """One property of all members of a roster, by rank; it is computed when it is read."""

    __slots__ = ("_of", "_size")

    def __init__(self, size: int, of: Callable[[int], T]) -> None:
        self._size: Final = size
        self._of: Final = of

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, rank: int) -> T: ...

    @overload
    def __getitem__(self, rank: slice) -> Sequence[T]: ...

    def __getitem__(self, rank: int | slice) -> T | Sequence[T]:
        if isinstance(rank, slice):
            return [self._of(one) for one in range(*rank.indices(self._size))]
        if not -self._size <= rank < self._size:
            raise IndexError(f"rank {rank} of {self._size}")
        return self._of(rank % self._size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]
