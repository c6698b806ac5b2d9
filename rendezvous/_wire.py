"""The bytes that a tcp store's server and its clients exchange.

Invariant: a received length is used only after it was compared with its bound, and only integers and byte strings are
decoded. If a client and a server have different secrets, they learn nothing from each other but this fact.

Handshake, with fixed sizes in bytes; a peer that takes longer than `HELLO_TIMEOUT` seconds is dropped:

    client -> server  hello: magic (8), version (2), flags (1), zeros (5), nonce (32)
    server -> client  hello, then tag (32): HMAC-SHA256(secret, "server" + client's hello + server's hello)
    client -> server  tag (32): HMAC-SHA256(secret, "client" + client's hello + server's hello)
    server -> client  one byte, 1: welcome

The flags tell whether the sender has a secret. Without a secret the key of the HMAC is empty, and the tags prove only
that both sides speak this protocol. Each side sends a fresh nonce, so old tags cannot be replayed. The labels "server"
and "client" differ, so a tag cannot be reflected to its sender.

After the handshake, the client sends requests, and the server sends a reply to each. Both are frames: length of the
rest (4), code (1), fields. A field is its length (4) and its bytes; the length `ABSENT` without bytes stands for None.
A request names at most `MAX_KEYS` keys, so that a single request does not keep the server busy for long. A client with
more keys sends several requests.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from ._checks import MAX_KEY, MAX_VALUE

MAGIC = b"pcolstor"
VERSION = 1
HELLO_TIMEOUT = 2.0  # seconds
MAX_FRAME = 4 * MAX_VALUE  # bytes of a reply
MAX_REQUEST = 2 * MAX_VALUE + 2 * MAX_KEY  # a compare_set of two of the longest values
MAX_KEYS = 4096
ABSENT = 0xFFFFFFFF

# requests
SET, GET, WAIT, ADD, COMPARE_SET, DELETE = range(1, 7)
# replies: DONE with the result's fields, TIMEOUT with the missing keys, WRONG and FAILED with a message
DONE, TIMEOUT, WRONG, FAILED = range(16, 20)

_HELLO = struct.Struct("!8sHB5x32s")
_LENGTH = struct.Struct("!I")
HELLO_SIZE = _HELLO.size
TAG_SIZE = 32
WELCOME = b"\x01"


@dataclass(frozen=True, slots=True)
class Hello:
    version: int
    has_secret: bool
    raw: bytes


class Malformed(Exception):
    """The received bytes do not follow this protocol."""


def make_hello(secret: bytes | None) -> bytes:
    return _HELLO.pack(MAGIC, VERSION, secret is not None, os.urandom(32))


def parse_hello(raw: bytes) -> Hello:
    magic, version, flags, _ = _HELLO.unpack(raw)
    if magic != MAGIC or flags > 1:
        raise Malformed("no hello of a store")
    return Hello(version, bool(flags), raw)


def tag(secret: bytes | None, role: bytes, client: bytes, server: bytes) -> bytes:
    return hmac.new(secret or b"", role + client + server, hashlib.sha256).digest()


def same(one: bytes, other: bytes) -> bool:
    return hmac.compare_digest(one, other)


def encode(code: int, fields: Iterable[bytes | None]) -> bytes:
    """Encode a request or a reply: the number `code`, followed by `fields`, each with its length.

    Raises: ValueError if the message is longer than `MAX_FRAME` bytes.
    """
    parts = [b"", bytes([code])]
    for field in fields:
        parts.append(_LENGTH.pack(ABSENT if field is None else len(field)))
        parts.append(field or b"")
    length = sum(map(len, parts))
    if length > MAX_FRAME:
        raise ValueError(f"{length} bytes are too much for one exchange with the store (at most {MAX_FRAME})")
    parts[0] = _LENGTH.pack(length)
    return b"".join(parts)


def frame_length(data: bytes | bytearray, most: int = MAX_FRAME) -> int | None:
    """Return the length in bytes of the first message in `data`, read from the 4-byte length with which it begins.

    The length includes these 4 bytes. Return None if fewer than 4 bytes are there. Raises: Malformed if the length that
    was read is 0 or more than `most`.
    """
    if len(data) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(data)
    if not 1 <= length <= most:
        raise Malformed(f"a frame of {length} bytes")
    return _LENGTH.size + int(length)


def decode(frame: bytes | bytearray, most: int = MAX_KEYS) -> tuple[int, list[bytes | None]]:
    """Decode a request or a reply: return its code and its fields, each bytes or None.

    Raises: Malformed if `frame` does not follow the protocol, or has more than `most` fields.
    """
    fields: list[bytes | None] = []
    at = _LENGTH.size + 1
    while at < len(frame):
        if len(fields) == most:
            raise Malformed(f"more than {most} fields")
        if len(frame) - at < _LENGTH.size:
            raise Malformed("a field is cut off")
        (length,) = _LENGTH.unpack_from(frame, at)
        at += _LENGTH.size
        if length == ABSENT:
            fields.append(None)
        elif length > len(frame) - at:
            raise Malformed("a field is longer than its frame")
        else:
            fields.append(bytes(frame[at : at + length]))
            at += length
    return frame[_LENGTH.size], fields
