"""The documents that ranks write to the store while a group forms: JSON, with an HMAC made with the job's secret.

The roster in a closed notice follows the JSON as bytes, after a line feed, and the HMAC covers both.

Invariant: whatever bytes a store returns, `unseal` returns a document or None, and never raises. A document is
authentic only if its HMAC, over job, epoch, key and content, was made with this rank's secret. For a rank without a
secret, a document is authentic only if it has no HMAC.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import secret as secrets
from ._roster import Roster

VERSION = 4  # version of the protocol in group.py and of these documents
MAX_SIZE = 1 << 16  # ranks
MAX_RECORD = 4096  # bytes of JSON
MAX_DEPTH = 16  # levels of nested lists and objects in a record
MAX_BEFORE = 4  # earlier sessions whose keys a notice lists
_LATEST = 1e12  # seconds since a boot
_MAX_TEXT = 1024  # characters of a name, a place or a fingerprint

_SESSION = re.compile(r"[0-9a-f]{32}")
_NONCE = re.compile(r"[0-9a-f]{32}")
_BYTES = "roster"  # the field of a document whose value may be bytes


@dataclass(frozen=True, slots=True)
class Scope:
    """The values that the ranks of one group share: the job's name and run id, the epoch, and the secret.

    The epoch is meant to count how often the ranks of a job have formed a new group; it is always 0 so far.
    """

    name: str
    run: str | None
    epoch: int
    secret: bytes | None = field(repr=False)

    @property
    def base(self) -> str:
        """The prefix of all store keys of a group: the job's name, a hash of its name and run id, and the epoch."""
        return _base(self.name, self.run, self.epoch)

    @property
    def notice(self) -> str:
        return f"{self.base}/notice"

    def key(self, session: str, what: str) -> str:
        return f"{self.base}/{session}/{what}"

    def seal(self, key: str, document: Mapping[str, Any]) -> bytes:
        """Encode `document`, with an HMAC if this rank has a secret. The field "roster" may be bytes, the others JSON.

        `key` is the store key to which the value will be written; the HMAC covers it.
        """
        attached = document.get(_BYTES)
        if isinstance(attached, bytes):
            body = dumps({name: value for name, value in document.items() if name != _BYTES}) + b"\n" + attached
        else:
            body = dumps(document)
        if self.secret is None:
            return b"\0" + body
        return b"\1" + secrets.sign(self.secret, self.base, self.epoch, key, body) + body

    def unseal(self, key: str, data: bytes) -> tuple[dict[str, Any] | None, bool]:
        """Decode `data`, the value of the store key `key`. Return a dict, and whether the value is authentic.

        The dict is None if `data` is no valid JSON object. A value is authentic if its HMAC was made with this rank's
        secret. If this rank has no secret, a value is authentic if it has no HMAC.
        """
        sealed = data[:1] == b"\1"
        start = 1 + secrets.TAG_SIZE if sealed else 1
        tag, body = data[1:start], data[start:]
        if self.secret is None:
            authentic = data[:1] == b"\0"
        else:
            authentic = sealed and secrets.verify(self.secret, self.base, self.epoch, key, body, tag)
        try:
            # Refuse documents that `dumps` refuses, because they could not be passed on.
            end = body.find(b"\n")
            document = json.loads(body if end < 0 else body[:end], parse_constant=_refuse, parse_float=_finite)
        except (ValueError, RecursionError):
            return None, authentic
        if not isinstance(document, dict):
            return None, authentic
        if end >= 0:
            document[_BYTES] = body[end + 1 :]
        return document, authentic


@functools.lru_cache(maxsize=64)
def _base(name: str, run: str | None, epoch: int) -> str:
    mark = hashlib.sha256(json.dumps([name, run]).encode()).hexdigest()[:16]
    return f"{name}~{mark}/{epoch}"


@dataclass(frozen=True, slots=True)
class Notice:
    """The value in the store that describes an attempt to form a group: who leads it, its state and its outcome."""

    version: int
    state: str  # open, closed (the group has formed) or failed
    session: str
    rank: int  # number of the leader
    size: int
    fingerprint: str
    place: str
    origin: str
    opened: float  # when, on the clock of `_process.now` where the leader runs
    roster: Roster | None  # if closed: all ranks
    verdict: Mapping[str, Any]  # if failed: the error
    before: tuple[tuple[str, int], ...]  # names and sizes of earlier sessions whose keys may still exist


def parse_notice(document: dict[str, Any] | None) -> Notice | None:
    match document:
        case {
            "v": int(version),
            "state": ("open" | "closed" | "failed") as state,
            "session": str(session),
            "rank": int(rank),
            "size": int(size),
            "fingerprint": str(fingerprint),
            "place": str(place),
            "origin": str(origin),
            "opened": int() | float() as opened,
            "roster": bytes() | [] as encoded,
            "verdict": dict(verdict),
            "before": list(earlier),
        } if (
            _SESSION.fullmatch(session)
            and 0 <= rank < size <= MAX_SIZE
            and 0 <= version < 1 << 16
            and 0 <= opened < _LATEST
            and all(map(_is_text, (fingerprint, place, origin)))
        ):
            roster = Roster.parse(encoded, size) if isinstance(encoded, bytes) else None
            before = [pair for pair in map(_pair, earlier) if _SESSION.fullmatch(pair[0]) and _is_size(pair[1])]
            if (roster is not None) == (state == "closed") and len(before) == len(earlier) <= MAX_BEFORE:
                known = version, state, session, rank, size, fingerprint, place, origin
                return Notice(*known, float(opened), roster, verdict, tuple(before))
    return None


def _pair(entry: Any) -> tuple[str, Any]:
    match entry:
        case [str(name), value]:
            return name, value
    return "", None


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and 1 <= value <= MAX_SIZE


@dataclass(frozen=True, slots=True)
class Hello:
    """The value that a rank writes to the store to join an attempt to form a group.

    `place` (host and pid) and `origin` (see `_process`) identify the rank's process, and `nonce` its attempt to join.
    `fingerprint` has the settings on which all ranks must agree. `record` is data for all other ranks.
    """

    rank: int
    size: int
    nonce: str
    fingerprint: str
    place: str
    origin: str
    record: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        return {
            "v": VERSION,
            "rank": self.rank,
            "size": self.size,
            "nonce": self.nonce,
            "fingerprint": self.fingerprint,
            "place": self.place,
            "origin": self.origin,
            "record": self.record,
        }


def parse_hello(document: dict[str, Any] | None) -> Hello | None:
    match document:
        case {
            "rank": int(rank),
            "size": int(size),
            "nonce": str(nonce),
            "fingerprint": str(fingerprint),
            "place": str(place),
            "origin": str(origin),
            "record": dict(record),
        } if (
            0 <= rank < size <= MAX_SIZE
            and _NONCE.fullmatch(nonce)
            and all(map(_is_text, (fingerprint, place, origin)))
            and fits(record)
        ):
            return Hello(rank, size, nonce, fingerprint, place, origin, record)
    return None


def fits(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Return whether lists and dicts in `value` are nested at most `depth` levels deep."""
    if isinstance(value, dict):
        return depth > 0 and all(fits(inner, depth - 1) for inner in value.values())
    if isinstance(value, list):
        return depth > 0 and all(fits(inner, depth - 1) for inner in value)
    return True


def _is_text(text: str) -> bool:
    """Whether `text` is short and printable. This excludes lone surrogates: JSON allows them, UTF-8 does not."""
    return len(text) <= _MAX_TEXT and text.isprintable()


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is more than a float holds")
    return value


def dumps(document: Mapping[str, Any]) -> bytes:
    """Encode `document` as compact JSON.

    Raises ValueError or TypeError if JSON cannot represent a value, such as NaN.
    """
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def ranks_text(ranks: list[int] | tuple[int, ...]) -> str:
    """Return rank numbers as text: `[1, 3, 4, 5]` as "ranks 1, 3-5". Long lists are shortened."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in runs]
    shown = ", ".join(parts[:40]) + (f" and {len(parts) - 40} more ranges" if len(parts) > 40 else "")
    return f"rank {shown}" if len(set(ranks)) == 1 else f"ranks {shown}"
