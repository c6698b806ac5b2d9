"""Converts Python objects to bytes and back, as data only: nothing that another rank sent is ever executed.

Invariant: the result of `decode` equals the encoded object, and all types in it are the same. Objects for which that
cannot be guaranteed are refused. `decode` creates only types that this module supports or that `register` has added.

An encoded object is a tag of one byte, then its content. Lengths and counts are varints; the items of a container are
encoded objects.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, NamedTuple
from uuid import UUID

import ml_dtypes
import numpy as np

from collectives.native.errors import DesyncError

_DEEPEST: Final = 100  # levels of nested containers; less than Python's recursion limit
_DTYPE: Final = re.compile(r"[<|][biufcSUMm][1-9][0-9]{0,8}(\[[0-9]{0,9}[a-zA-Z]{1,2}\])?")
_EXTENDED: Final = {  # dtypes that NumPy knows by name only
    np.dtype(t).name: np.dtype(t)
    for t in (
        *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3b11fnuz, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz),
        *(ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz, ml_dtypes.int4, ml_dtypes.uint4),
    )
}


class Codec(NamedTuple):
    """How objects of the type `type` are encoded as bytes.

    `parts(object)` returns a description of the object, made of supported types. `made(parts)` makes the object again
    from this description on another rank, and raises an error if the description is invalid.
    """

    type: type
    parts: Callable[[Any], Any]
    made: Callable[[Any], Any]


_codecs: Final[dict[str, Codec]] = {}
_names: Final[dict[type, str]] = {}


def register(name: str, codec: Codec) -> None:
    """Makes `encode` and `decode` use `codec` for objects of the type `codec.type`, but not of its subclasses.

    `name` identifies the type in the encoded bytes, so every rank has to use the same name.
    """
    _codecs[name] = codec
    _names[codec.type] = name


register("complex", Codec(complex, lambda z: (z.real, z.imag), lambda parts: complex(*parts)))
register("bytearray", Codec(bytearray, bytes, lambda data: bytearray(memoryview(data))))
register("OrderedDict", Codec(OrderedDict, lambda d: tuple(d.items()), OrderedDict))
register("range", Codec(range, lambda r: (r.start, r.stop, r.step), lambda parts: range(*parts)))
register("slice", Codec(slice, lambda s: (s.start, s.stop, s.step), lambda parts: slice(*parts)))
register("Decimal", Codec(Decimal, str, Decimal))
register("Fraction", Codec(Fraction, lambda f: (f.numerator, f.denominator), lambda parts: Fraction(*parts)))
register("UUID", Codec(UUID, lambda u: u.bytes, lambda data: UUID(bytes=data)))
register("date", Codec(date, date.isoformat, date.fromisoformat))
register("timedelta", Codec(timedelta, lambda d: (d.days, d.seconds, d.microseconds), lambda p: timedelta(*p)))


def _naive(moment: Any) -> Any:
    if moment.tzinfo is not None:
        raise TypeError(f"a {type(moment).__name__} with a time zone cannot travel between ranks: give its isoformat()")
    return moment.isoformat(), moment.fold


register("datetime", Codec(datetime, _naive, lambda p: datetime.fromisoformat(p[0]).replace(fold=p[1])))
register("time", Codec(time, _naive, lambda p: time.fromisoformat(p[0]).replace(fold=p[1])))


# --- encoding


def encode(obj: Any) -> bytes:
    """Encodes the object `obj` as bytes, without pickle.

    Raises TypeError if its type is unsupported, ValueError if it is nested too deeply or contains itself.
    """
    out = bytearray()
    _put(out, obj, 0)
    return bytes(out)


def _put(out: bytearray, obj: Any, depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError(f"the object is nested more than {_DEEPEST} deep, or holds itself: give a flatter one")
    kind = type(obj)
    if obj is None:
        out += b"N"
    elif kind is bool:
        out += b"T" if obj else b"F"
    elif kind is int:
        _put_bytes(out, b"i", obj.to_bytes(obj.bit_length() // 8 + 1, "little", signed=True))
    elif kind is float:
        out += b"f" + np.array(obj, "<f8").tobytes()
    elif kind is str:
        _put_bytes(out, b"s", obj.encode("utf-8", "surrogatepass"))
    elif kind is bytes:
        _put_bytes(out, b"b", obj)
    elif kind in _CONTAINERS:
        out += _CONTAINERS[kind]
        _put_count(out, len(obj))
        for item in obj:
            _put(out, item, depth + 1)
    elif kind is dict:
        out += b"d"
        _put_count(out, len(obj))
        for key, value in obj.items():
            _put(out, key, depth + 1)
            _put(out, value, depth + 1)
    elif kind is np.ndarray or isinstance(obj, np.generic):
        _put_array(out, np.asarray(obj), b"a" if kind is np.ndarray else b"g")
    elif kind in _names:
        name = _names[kind]
        _put_bytes(out, b"c", name.encode())
        _put(out, _codecs[name].parts(obj), depth + 1)
    else:
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        raise TypeError(
            f"a {name} cannot travel between ranks, since making one there would execute code: give what it consists "
            "of, as None, bool, int, float, complex, str, bytes, list, tuple, dict, set, or NumPy arrays"
        )


_CONTAINERS: Final[dict[type, bytes]] = {list: b"l", tuple: b"t", set: b"S", frozenset: b"Z"}


def _put_count(out: bytearray, count: int) -> None:
    while count >= 0x80:
        out.append(count & 0x7F | 0x80)
        count >>= 7
    out.append(count)


def _put_bytes(out: bytearray, tag: bytes, data: bytes) -> None:
    out += tag
    _put_count(out, len(data))
    out += data


def _put_array(out: bytearray, array: Any, tag: bytes) -> None:
    dtype = array.dtype.newbyteorder("<")
    name = dtype.name if dtype.name in _EXTENDED else dtype.str
    if dtype.name not in _EXTENDED and not _DTYPE.fullmatch(name):
        raise TypeError(
            f"an array of dtype {array.dtype} cannot travel between ranks: give one of numbers, texts or times"
        )
    _put_bytes(out, tag, name.encode())
    _put_count(out, array.ndim)
    for extent in array.shape:
        _put_count(out, extent)
    data = array.astype(dtype, copy=False).tobytes()
    _put_count(out, len(data))
    out += data


# --- decoding


def decode(data: bytes) -> Any:
    """Returns the object that `encode` has encoded as `data`. Raises DesyncError for invalid bytes."""
    reader = _Reader(data)
    try:
        found = reader.object(0)
        reader.end()
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        raise DesyncError(f"what came is no object of a rank ({error}): {data[:20]!r}") from error
    return found


class _Reader:
    """Decodes the objects in `data` one after the other. Raises ValueError or another exception for invalid bytes."""

    def __init__(self, data: bytes) -> None:
        self._data: Final = data
        self._at = 0

    def end(self) -> None:
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes too many")

    def object(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")
        tag = self._take(1)
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag == b"i":
            return int.from_bytes(self._counted(), "little", signed=True)
        if tag == b"f":
            return float(np.frombuffer(self._take(8), "<f8")[0])
        if tag == b"s":
            return self._counted().decode("utf-8", "surrogatepass")
        if tag == b"b":
            return self._counted()
        if tag in _MADE:
            return _MADE[tag](self.object(depth + 1) for _ in range(self._count()))
        if tag == b"d":
            return {self.object(depth + 1): self.object(depth + 1) for _ in range(self._count())}
        if tag in (b"a", b"g"):
            array = self._array()
            return array if tag == b"a" else array[()]
        if tag == b"c":
            return _codecs[self._counted().decode()].made(self.object(depth + 1))
        raise ValueError(f"tag {tag!r}")

    def _array(self) -> Any:
        name = self._counted().decode()
        if name not in _EXTENDED and not _DTYPE.fullmatch(name):
            raise ValueError(f"dtype {name!r}")
        dtype = _EXTENDED.get(name) or np.dtype(name)
        shape = tuple(self._count() for _ in range(self._count()))
        data = bytearray(self._counted())  # writeable, as the original was
        if len(data) != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{len(data)} bytes for an array of shape {shape}")
        return np.ndarray(shape, dtype, data) if data else np.empty(shape, dtype)

    def _count(self) -> int:
        found = shift = 0
        while True:
            byte = self._take(1)[0]
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
            shift += 7
            if shift > 62:
                raise ValueError("a length of more than 63 bits")

    def _counted(self) -> bytes:
        return self._take(self._count())

    def _take(self, count: int) -> bytes:
        part = self._data[self._at : self._at + count]
        if len(part) != count:
            raise ValueError("it ends too early")
        self._at += count
        return part


_CONSTANTS: Final[dict[bytes, Any]] = {b"N": None, b"T": True, b"F": False}
_MADE: Final[dict[bytes, Any]] = {b"l": list, b"t": tuple, b"S": set, b"Z": frozenset}
